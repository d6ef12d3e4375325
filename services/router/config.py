"""The router's flags."""

from __future__ import annotations

import pathlib
from dataclasses import dataclass
from typing import ClassVar

from libs.config import ConfigError, ServiceConfig, is_loopback, port_setting, setting
from libs.demo.cache import cache_dir


@dataclass(frozen=True, kw_only=True)
class RouterConfig(ServiceConfig):
    """`--port` is gRPC's, `--http-port` HTTP's; both listen on `--host`."""

    members_only: ClassVar[bool] = False

    port: int = port_setting(7070)
    http_port: int = port_setting(8080, "TCP port of the HTTP API; 0 picks a free one.")
    tls_clients: bool = setting(
        False, "Clients, too, must show a certificate of the CA, over HTTP and gRPC."
    )
    advertise_http: str = setting("", "URL that others reach the HTTP API by; empty: as bound.")
    objects: str = setting(
        "./impala-objects", "Object store: a folder, or an s3://, gs:// or az:// URL."
    )
    no_auth: bool = setting(False, "Serve without API keys; on loopback only.")
    cache: pathlib.Path | None = setting(
        None, "Folder of converted tokenizers and models; empty: $IMPALA_CACHE or ~/.cache/impala."
    )
    request_timeout_s: float = setting(
        600.0, "Seconds that a single request may take in all.", minimum=1
    )
    line_timeout_s: float = setting(
        3600.0,
        "Seconds that one line of a batch may take here before it is handed out again.",
        minimum=1,
    )
    scheduler_patience_s: float = setting(
        2.0, "Seconds without any scheduler's answer before a step is placed here.", minimum=0
    )
    server_patience_s: float = setting(
        10.0, "Seconds to wait for a model server of a known model.", minimum=0
    )
    price_per_engine_hour: float = setting(
        1.0, "USD per engine-hour of jobs that name no price of their own.", minimum=0
    )
    sweep_s: float = setting(
        600.0, "Seconds between looks for expired files, whose content is deleted.", minimum=1
    )
    garbage_grace_s: float = setting(
        3600.0,
        "Seconds that an object may be without a record that names it before it is deleted; 0 = "
        "none is ever deleted.",
        minimum=0,
    )
    keep_results_s: float = setting(
        7 * 86_400.0,
        "Seconds that the results of an ended batch can be read line by line; its files remain.",
        minimum=0,
    )
    max_request_bytes: int = setting(
        256 << 20,
        "Bytes of requests held at once, by one account half of that; what comes beyond is told to "
        "come again (503).",
        minimum=8 << 20,
    )
    max_batch_bytes: int = setting(200_000_000, "Largest batch input file.", minimum=1)
    max_batch_lines: int = setting(50_000, "Most requests in a batch input file.", minimum=1)
    max_file_bytes: int = setting(512_000_000, "Largest file of any purpose.", minimum=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.tls_clients and self.tls_ca is None:
            raise ConfigError("--tls-clients needs a CA: give --tls or --tls-ca.")
        if self.no_auth and not is_loopback(self.host):
            raise ConfigError(
                f"--no-auth is for loopback only, and --host is {self.host}: make API keys with "
                "'impala keys create' and leave --no-auth out, or listen on 127.0.0.1."
            )

    @property
    def cache_folder(self) -> pathlib.Path:
        return self.cache or cache_dir()
