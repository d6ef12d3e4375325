"""`python -m libs.rpc.probe`: asks a server's health service; for the health checks of containers.

It reads the settings of the service beside it (IMPALA_HOST, IMPALA_PORT, IMPALA_TLS_...), so that
one environment makes a server and its probe. Exit code 0 when the server says SERVING; else 1 after
one sentence; 2 for a wrong setting.
"""

from __future__ import annotations

import asyncio
import pathlib
import sys
from dataclasses import dataclass

from grpc_health.v1 import health_pb2, health_pb2_grpc

from libs.config import ConfigError, parse_config, port_setting, setting
from libs.config.service import check_files, fill_from_folder
from libs.errors import ImpalaError
from libs.rpc.channel import call, connect
from libs.rpc.tls import ClientTls

_WILDCARDS = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}


@dataclass(frozen=True, kw_only=True)
class ProbeConfig:
    """Ask one server for its health."""

    port: int = port_setting(0, "TCP port that the server listens on.")
    host: str = setting("127.0.0.1", "Its address; a wildcard is asked on loopback.")
    service: str = setting(
        "", "Full name of one gRPC service; empty: the whole server.", env="IMPALA_PROBE_SERVICE"
    )
    timeout_s: float = setting(
        2.0, "Seconds to wait for the answer.", minimum=0.01, env="IMPALA_PROBE_TIMEOUT_S"
    )
    tls: pathlib.Path | None = setting(
        None, "Folder with the server's tls.crt, tls.key and ca.crt."
    )
    tls_cert: pathlib.Path | None = setting(None, "The server's certificate chain, PEM.")
    tls_key: pathlib.Path | None = setting(None, "The certificate's private key, PEM.")
    tls_ca: pathlib.Path | None = setting(None, "CA of the cluster, PEM.")
    tls_name: str = setting("", "Name that the server's certificate is for; empty: the host.")

    def __post_init__(self) -> None:
        if not self.port:
            raise ConfigError("--port is required (or set IMPALA_PORT).")
        fill_from_folder(self, self.tls, "tls")
        check_files(self, "tls")

    @property
    def target(self) -> str:
        host = _WILDCARDS.get(self.host.strip("[]"), self.host.strip("[]"))
        return f"[{host}]:{self.port}" if ":" in host else f"{host}:{self.port}"

    @property
    def client_tls(self) -> ClientTls | None:
        """As the server itself: without a CA its own certificate is what is trusted, and where a
        CA is given, clients must show a certificate too."""
        if self.tls_cert is None:
            return None
        name = self.tls_name or None
        if self.tls_ca is None:
            return ClientTls(self.tls_cert, server_name=name)
        return ClientTls(self.tls_ca, self.tls_cert, self.tls_key, name)


async def probe(config: ProbeConfig) -> str:
    """The status by its name in grpc.health.v1 ("SERVING"). Raises ImpalaError without an answer:
    NotFound for a service that the server does not have."""
    async with connect(config.target, config.client_tls) as channel:
        answer = await call(
            health_pb2_grpc.HealthStub(channel).Check,
            health_pb2.HealthCheckRequest(service=config.service),
            timeout_s=config.timeout_s,
        )
    return str(health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status))


def main() -> int:
    config = parse_config(ProbeConfig, sys.argv[1:], prog="probe")
    try:
        status = asyncio.run(probe(config))
    except ImpalaError as error:
        print(f"probe: {config.target}: {error}", file=sys.stderr)
        return 1
    print(status)
    return 0 if status == "SERVING" else 1


if __name__ == "__main__":
    sys.exit(main())
