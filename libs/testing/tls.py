"""A certificate authority for tests, and what it issues as a service is given it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from libs.rpc.tls import ClientTls, ServerTls


class Authority:
    """A certificate authority of its own in a folder."""

    def __init__(self, folder: Path, name: str = "test-ca") -> None:
        """name: its own for each of several that one file vouches for."""
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name(name)
        builder = _builder(self._name, self._name, self._key)
        builder = builder.add_extension(x509.BasicConstraints(True, None), critical=True)
        self.cert = self._write("ca.pem", builder.sign(self._key, hashes.SHA256()))

    def issue(self, name: str, *, dns: str = "", expired: bool = False) -> tuple[Path, Path]:
        """Certificate and key for `name`, valid for 127.0.0.1, or instead for the host `dns`; for
        two days around now, or until yesterday."""
        key = ec.generate_private_key(ec.SECP256R1())
        host = x509.DNSName(dns) if dns else x509.IPAddress(ip_address("127.0.0.1"))
        address = x509.SubjectAlternativeName([host])
        builder = _builder(_name(name), self._name, key, ended=expired)
        builder = builder.add_extension(address, critical=False)
        key_path = self._folder / f"{name}.key"
        key_path.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        return self._write(f"{name}.pem", builder.sign(self._key, hashes.SHA256())), key_path

    def _write(self, file: str, cert: x509.Certificate) -> Path:
        path = self._folder / file
        path.write_bytes(cert.public_bytes(Encoding.PEM))
        return path


class MountedSecret:
    """A `--tls` folder as Kubernetes mounts a secret: its files lead through a link `..data`, and
    another one in its place renews all of them at once."""

    def __init__(self, path: Path) -> None:
        """Empty until `renew`."""
        self.path = path
        self._version = 0
        path.mkdir(parents=True)
        self.cert, self.key, self.ca = files = [
            path / name for name in ("tls.crt", "tls.key", "ca.crt")
        ]
        for file in files:
            file.symlink_to(Path("..data") / file.name)

    def renew(self, of: Authority, *trusted: Authority) -> None:
        """A certificate of an authority; who trusts that one, or else those given."""
        self._version += 1
        data = self.path / f"..{self._version}"
        data.mkdir()
        cert, key = of.issue(f"{self.path.name}-{self._version}")
        (data / "tls.crt").write_bytes(cert.read_bytes())
        (data / "tls.key").write_bytes(key.read_bytes())
        (data / "tls.key").chmod(0o600)
        (data / "ca.crt").write_bytes(b"".join(ca.cert.read_bytes() for ca in trusted or (of,)))
        link = self.path / "..new"
        link.symlink_to(data.name)
        link.replace(self.path / "..data")

    @property
    def server(self) -> ServerTls:
        return ServerTls(self.cert, self.key, self.ca)

    @property
    def client(self) -> ClientTls:
        return ClientTls(self.ca, self.cert, self.key)


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, common)])


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    *,
    ended: bool = False,
) -> x509.CertificateBuilder:
    now = datetime.now(UTC) - timedelta(days=2 if ended else 0)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
    )
