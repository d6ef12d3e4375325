"""A folder with `tls.crt`, `tls.key` and `ca.crt`, and what a command makes of it."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path

from libs.rpc import ClientTls
from libs.rpc.tls import read_ca, read_pair


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """The services' `--tls FOLDER`: a certificate, its key, and the CA of all members."""

    folder: Path

    @property
    def cert(self) -> Path:
        return self.folder / "tls.crt"

    @property
    def key(self) -> Path:
        return self.folder / "tls.key"

    @property
    def ca(self) -> Path:
        return self.folder / "ca.crt"

    def client(self, name: str = "") -> ClientTls:
        """As a member dials its peers and etcd. name: expected in their certificates instead of
        the host that is dialled."""
        return ClientTls(self.ca, self.cert, self.key, name or None)

    def context(self) -> ssl.SSLContext:
        """The same for HTTP. Raises ConfigError for files that cannot be used."""
        return http_context(self.client())


def http_context(tls: ClientTls) -> ssl.SSLContext:
    """For an HTTP client that trusts this CA and no other. Raises ConfigError."""
    if tls.ca is not None:
        read_ca(tls.ca)
    context = ssl.create_default_context(cafile=tls.ca)
    if tls.cert is not None and tls.key is not None:
        read_pair(tls.cert, tls.key)
        context.load_cert_chain(tls.cert, tls.key)
    return context
