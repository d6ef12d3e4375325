"""The names of every variable that some part of Impala reads, to find a misspelt one by.

A service knows its own settings only, and one environment is often shared by several services, the
probe and the command line: what one of them does not read is not yet a mistake.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping

PREFIX = "IMPALA_"

KNOWN = frozenset(
    PREFIX + name
    for name in [
        "ADVERTISE",
        "ADVERTISE_HTTP",
        "ANSWERS_FROM",
        "ANSWERS_TO",
        "API_KEY",
        "CA",
        "CACHE",
        "CLOCK_SHIFT",
        "DIE_ON",
        "DRAIN_S",
        "ELECTION_TTL_S",
        "ETCD",
        "ETCD_CA",
        "ETCD_CERT",
        "ETCD_KEY",
        "ETCD_PASSWORD_FILE",
        "ETCD_PLAIN",
        "ETCD_USER",
        "ETCD_WAIT_S",
        "FLUSH_S",
        "GARBAGE_GRACE_S",
        "GRPC",
        "HANG_ON",
        "HOST",
        "HTTP_PORT",
        "INSECURE",
        "KEEP_RESULTS_S",
        "KV_BYTES",
        "LINE_ATTEMPTS",
        "LINE_LOSSES",
        "LINE_RETRY_S",
        "LINE_TIMEOUT_S",
        "LOAD_FROM",
        "LOG_JSON",
        "LOG_LEVEL",
        "LOWER_TIERS",
        "MAX_BATCH_BYTES",
        "MAX_BATCH_LINES",
        "MAX_BATCH_TOKENS",
        "MAX_CONTEXT",
        "MAX_FILE_BYTES",
        "MAX_QUEUE",
        "MAX_REQUEST_BYTES",
        "MAX_SEQS",
        "MAX_WAITING",
        "MEMBER",
        "MEMORY_BYTES",
        "METRICS_PORT",
        "MODEL",
        "MODEL_NAME",
        "NO_AUTH",
        "OBJECTS",
        "OVERCOMMIT",
        "PORT",
        "PRECISION",
        "PRICE_PER_ENGINE_HOUR",
        "PROBE_SERVICE",
        "PROBE_TIMEOUT_S",
        "REQUEST_TIMEOUT_S",
        "REWRITE_GOLDEN",
        "SCHEDULER_PATIENCE_S",
        "SERVER_PATIENCE_S",
        "STATE",
        "STEP_LIMIT_S",
        "STEP_S",
        "STORE_BUFFER_BYTES",
        "SWEEP_S",
        "THREADS",
        "TLS",
        "TLS_CA",
        "TLS_CERT",
        "TLS_CLIENTS",
        "TLS_KEY",
        "TLS_NAME",
        "TORCH_INDEX",
        "URL",
    ]
)
"""Of all services, the probe, the command line, the setup and the tests."""

# Kubernetes gives every container the addresses of the services of its namespace, by their names.
_ADDRESS_NAME = re.compile(r"_SERVICE_(HOST|PORT\w*)$|_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?$")
_ADDRESS = re.compile(r"(tcp|udp|sctp)://")


def unknown_variables(env: Mapping[str, str]) -> list[str]:
    """A sentence for each variable that is named as ours are and that nothing reads."""
    return [
        f"The variable {name} is ignored: no setting has this name{_meant(name)}."
        for name, value in sorted(env.items())
        if name.startswith(PREFIX)
        and name not in KNOWN
        and not _ADDRESS_NAME.search(name)
        and not _ADDRESS.match(value)
    ]


def _meant(name: str) -> str:
    near = difflib.get_close_matches(name, sorted(KNOWN), n=1, cutoff=0.8)
    return f"; {near[0]} has" if near else ""
