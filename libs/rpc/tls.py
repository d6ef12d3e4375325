"""TLS material, and the rule that nothing unprotected is served beyond this machine."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from pathlib import Path

import grpc

from libs.config import ConfigError


@dataclass(frozen=True)
class ServerTls:
    """A server's certificate chain and key (PEM files).

    client_ca: when given, clients must present a certificate that this CA signed (mTLS).
    """

    cert: Path
    key: Path
    client_ca: Path | None = None

    def credentials(self) -> grpc.ServerCredentials:
        roots = self.client_ca.read_bytes() if self.client_ca else None
        pair = (self.key.read_bytes(), self.cert.read_bytes())
        return grpc.ssl_server_credentials([pair], roots, require_client_auth=roots is not None)


@dataclass(frozen=True)
class ClientTls:
    """Whom a client trusts and, for mTLS, who it is (PEM files).

    ca:          None trusts the public roots that grpc ships.
    server_name: the name to expect in the server's certificate when it is not the target's host.
    """

    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None
    server_name: str | None = None

    def credentials(self) -> grpc.ChannelCredentials:
        return grpc.ssl_channel_credentials(
            self.ca.read_bytes() if self.ca else None,
            self.key.read_bytes() if self.key else None,
            self.cert.read_bytes() if self.cert else None,
        )


def is_loopback(host: str) -> bool:
    """True when only this machine can connect to `host`; of names, only localhost is taken so."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def check_exposure(
    host: str, *, protected: bool, remedy: str = "give --tls-cert and --tls-key"
) -> None:
    """Refuse to listen beyond loopback without protection.

    protected: TLS, API keys, or the operator's explicit word, whichever guards this listener.
    Raises ConfigError with `remedy` as what to do.
    """
    if not protected and not is_loopback(host):
        raise ConfigError(
            f"Listening on {host} would serve other machines unprotected: {remedy}, or listen on "
            "127.0.0.1."
        )
