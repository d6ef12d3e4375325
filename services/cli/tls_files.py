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
        read_pair(self.cert, self.key)
        context = trusting(self.ca)
        context.load_cert_chain(self.cert, self.key)
        return context


def trusting(ca: Path) -> ssl.SSLContext:
    """For an HTTP client that trusts this CA and no other. Raises ConfigError."""
    read_ca(ca)
    return ssl.create_default_context(cafile=ca)
