"""TLS material, of servers and of clients.

Certificates are read again when their files have changed: new connections, either way, are made
with the new ones, and those that are there go on.
"""

from __future__ import annotations

import functools
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import grpc

from libs.config import ConfigError
from libs.rpc.reloaded import Reloaded


@dataclass(frozen=True)
class ServerTls:
    """A server's certificate chain and key (PEM files).

    client_ca: when given, clients must present a certificate that this CA signed (mTLS).
    """

    cert: Path
    key: Path
    client_ca: Path | None = None

    def credentials(self) -> grpc.ServerCredentials:
        """Raises ConfigError when the files are no certificate with its key."""
        paths = [self.cert, self.key, *([self.client_ca] if self.client_ca else [])]
        files = Reloaded(paths, self._configuration)
        return grpc.dynamic_ssl_server_credentials(
            files.current(), files.current, require_client_authentication=self.client_ca is not None
        )

    def _configuration(self) -> grpc.ServerCertificateConfiguration:
        key, cert = read_pair(self.cert, self.key)
        roots = read_ca(self.client_ca) if self.client_ca else None
        return grpc.ssl_server_certificate_configuration([(key, cert)], roots)

    def context(self) -> ssl.SSLContext:
        """For a server that is not gRPC's, whose handshakes it keeps up to date with the files.
        Raises ConfigError as `credentials` does."""
        paths = [self.cert, self.key, *([self.client_ca] if self.client_ca else [])]
        files = Reloaded(paths, self._context)

        def renew(connection: ssl.SSLObject, _name: object, _context: object) -> None:
            connection.context = files.current()

        listening = self._context()
        listening.sni_callback = renew
        return listening

    def _context(self) -> ssl.SSLContext:
        read_pair(self.cert, self.key)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.cert, self.key)
        if self.client_ca is not None:
            read_ca(self.client_ca)
            context.load_verify_locations(self.client_ca)
            context.verify_mode = ssl.CERT_REQUIRED
            # A session that is resumed shows no certificate: it would outlive the CA's removal.
            context.minimum_version = ssl.TLSVersion.TLSv1_3
            context.num_tickets = 0
        return context


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

    def credentials(self) -> Callable[[], grpc.ChannelCredentials]:
        """To be asked at each call: another object when the files have changed. Raises ConfigError
        when they are no certificates."""
        return _followed(self).current

    def read(self) -> grpc.ChannelCredentials:
        """Of what the files hold now. Raises ConfigError as `credentials` does."""
        roots = read_ca(self.ca) if self.ca else None
        if self.cert is None or self.key is None:
            return grpc.ssl_channel_credentials(roots)
        key, cert = read_pair(self.cert, self.key)
        return grpc.ssl_channel_credentials(roots, key, cert)


@functools.cache
def _followed(tls: ClientTls) -> Reloaded[grpc.ChannelCredentials]:
    """One for all channels of a process: files are looked at, and a fault of theirs told, once."""
    paths = [path for path in (tls.ca, tls.cert, tls.key) if path is not None]
    return Reloaded(paths, tls.read)


def read_pair(cert: Path, key: Path) -> tuple[bytes, bytes]:
    """(key, certificate chain), known to belong together. Raises ConfigError."""
    try:
        before = key.read_bytes(), cert.read_bytes()
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(cert, key, _no_password)
        if (key.read_bytes(), cert.read_bytes()) != before:
            raise ConfigError(f"{cert} and {key} are being changed.")
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(
            f"The certificate {cert} and the key {key} cannot be used: {_why(error)}."
        ) from error
    return before


def read_ca(path: Path) -> bytes:
    """Certificates of authorities. Raises ConfigError."""
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(path)
        return path.read_bytes()
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"The CA file {path} cannot be used: {_why(error)}.") from error


def _no_password() -> str:
    raise ConfigError("A key with a password cannot be used: nobody is there to type it.")


def _why(error: OSError) -> str:
    if isinstance(error, ssl.SSLError):
        if error.reason == "KEY_VALUES_MISMATCH":
            return "they do not belong together"
        return "it is not PEM of the right kind"
    return error.strerror or str(error)
