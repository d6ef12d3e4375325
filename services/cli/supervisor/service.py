"""A service as the supervisor runs it, and one life of its process."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from services.cli.core.supervision import Unit
from services.cli.supervisor.log import Log

TETHER = Path(__file__).with_name("tether.py")

OTHER_PLACES = frozenset(
    f"IMPALA_{name}"
    for name in (
        *("TLS", "TLS_CERT", "TLS_KEY", "TLS_CA", "TLS_NAME", "TLS_CLIENTS"),
        *("ETCD_PLAIN", "ETCD_CA", "ETCD_CERT", "ETCD_KEY", "ETCD_USER", "ETCD_PASSWORD_FILE"),
    )
)
"""How commands are told to reach a cluster elsewhere. Services would take it for themselves."""

Probe = Callable[[], Awaitable[bool]]
"""Whether the service can do its work now; False as well when it is not there."""


@dataclass(frozen=True, kw_only=True)
class Service:
    """service: its kind, as `impala ps` names it. unit.name: this one, when there are several.
    ports: by protocol, for people. env: added to the supervisor's own, without OTHER_PLACES."""

    service: str
    unit: Unit
    command: Sequence[str]
    ports: Mapping[str, int]
    probe: Probe
    env: Mapping[str, str] = field(default_factory=dict)


async def spawn(service: Service, log: Log) -> asyncio.subprocess.Process:
    """Starts it in a process group of its own, so that a terminal's Ctrl-C reaches the supervisor
    only, and tied to this process: it is killed when this process dies in whatever way.

    Must be called on the main thread (see tether.py). Raises OSError if nothing can be started.
    """
    tether = [sys.executable, "-I", "-S", str(TETHER), str(os.getpid())]
    with log.path.open("ab") as output:
        return await asyncio.create_subprocess_exec(
            *tether,
            *service.command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=environment(os.environ, service.env),
            start_new_session=True,
        )


def environment(ours: Mapping[str, str], added: Mapping[str, str]) -> dict[str, str]:
    inherited = {name: value for name, value in ours.items() if name not in OTHER_PLACES}
    return {**inherited, **added}


def send(process: asyncio.subprocess.Process, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(number)
