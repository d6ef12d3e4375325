"""A certificate authority for tests: TLS and mutual TLS with real certificates."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat


class Authority:
    """A certificate authority of its own in a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name("test-ca")
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
