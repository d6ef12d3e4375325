"""Certificates of a local instance: a CA of its own, and one certificate for all its members.

FOLDER/ca.crt   what clients are told to trust
FOLDER/ca.key   signs renewed certificates, so that clients need no other CA for ten years
FOLDER/tls.crt  shown by every service, to clients and to each other; for this machine's names
FOLDER/tls.key  its key
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Literal

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID

from services.cli.tls_files import TlsFiles

CA_LASTS = timedelta(days=3650)
LASTS = timedelta(days=365)
RENEWED_BEFORE = timedelta(days=30)
"""So long before its end."""
BACKDATED = timedelta(days=1)
"""A client whose clock is behind must not refuse it."""
ADDRESSES = ("127.0.0.1", "::1")
PURPOSES = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
"""Members show the same certificate to those they call."""

Key = ec.EllipticCurvePrivateKey
Issuer = tuple[x509.Certificate, Key]


def keep(folder: Path, host: str, now: datetime) -> Literal["made", "renewed"] | None:
    """Sees to it that the folder's certificates hold for `host`, localhost and loopback for
    RENEWED_BEFORE from `now` (aware of its time zone) on. Says what it had to do: "made" is a new
    CA too, which clients must be given.

    One writer at a time. Raises OSError for a folder that cannot be written.
    """
    files, names = TlsFiles(folder), _names(host)
    ca = _pair(files.ca, folder / "ca.key")
    if ca is None or not _lasts(ca[0], now):
        _new_certificate(files, _new_ca(folder, host, now), names, now)
        return "made"
    if _is_good(_pair(files.cert, files.key), ca[0], names, now):
        return None
    _new_certificate(files, ca, names, now)
    return "renewed"


def names_of(certificate: x509.Certificate) -> list[str]:
    """Hosts and addresses that it is for."""
    try:
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    addresses = found.get_values_for_type(x509.IPAddress)
    return [*found.get_values_for_type(x509.DNSName), *map(str, addresses)]


def _names(host: str) -> list[str]:
    """No certificate can be for a host whose name is not ASCII."""
    hosts = ("localhost", host) if host and host.isascii() else ("localhost",)
    return [*dict.fromkeys(hosts), *ADDRESSES]


def _is_good(
    pair: Issuer | None, ca: x509.Certificate, names: Sequence[str], now: datetime
) -> bool:
    if pair is None or not _lasts(pair[0], now) or not set(names) <= set(names_of(pair[0])):
        return False
    try:
        pair[0].verify_directly_issued_by(ca)
    except (InvalidSignature, ValueError, TypeError):
        return False
    return True


def _lasts(certificate: x509.Certificate, now: datetime) -> bool:
    end = certificate.not_valid_after_utc - RENEWED_BEFORE
    return certificate.not_valid_before_utc <= now <= end


def _pair(cert: Path, key: Path) -> Issuer | None:
    """None for files that are not there, or do not belong together: a start may have been killed
    between the two."""
    try:
        certificate = x509.load_pem_x509_certificate(cert.read_bytes())
        private = load_pem_private_key(key.read_bytes(), password=None)
    except (FileNotFoundError, ValueError, TypeError, UnsupportedAlgorithm):
        return None
    if not isinstance(private, Key) or certificate.public_key() != private.public_key():
        return None
    return certificate, private


def _new_ca(folder: Path, host: str, now: datetime) -> Issuer:
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    key, name = ec.generate_private_key(ec.SECP256R1()), _name(f"impala up on {host}"[:64])
    builder = _builder(name, name, key, now, CA_LASTS)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_usage(signs=True), critical=True)
    certificate = builder.sign(key, hashes.SHA256())
    _write_key(folder / "ca.key", key)
    _write(folder / "ca.crt", certificate.public_bytes(Encoding.PEM), 0o644)
    return certificate, key


def _new_certificate(files: TlsFiles, ca: Issuer, names: Sequence[str], now: datetime) -> None:
    issuer, issuer_key = ca
    key = ec.generate_private_key(ec.SECP256R1())
    lasts = min(LASTS, issuer.not_valid_after_utc - now)
    builder = _builder(_name("impala"), issuer.subject, key, now, lasts)
    authority = x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key())
    for extension, critical in (
        (x509.BasicConstraints(ca=False, path_length=None), True),
        (_usage(signs=False), True),
        (x509.ExtendedKeyUsage(PURPOSES), False),
        (authority, False),
        (x509.SubjectAlternativeName([_general_name(name) for name in names]), False),
    ):
        builder = builder.add_extension(extension, critical)
    certificate = builder.sign(issuer_key, hashes.SHA256())
    _write_key(files.key, key)
    _write(files.cert, certificate.public_bytes(Encoding.PEM), 0o644)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: Key, now: datetime, lasts: timedelta
) -> x509.CertificateBuilder:
    identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - BACKDATED)
        .not_valid_after(now + lasts)
        .add_extension(identifier, critical=False)
    )


def _usage(*, signs: bool) -> x509.KeyUsage:
    """Of a CA, or else of who only shows it."""
    return x509.KeyUsage(
        digital_signature=not signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs,
        crl_sign=signs,
        encipher_only=False,
        decipher_only=False,
    )


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, common)])


def _general_name(name: str) -> x509.GeneralName:
    return x509.IPAddress(ip_address(name)) if name in ADDRESSES else x509.DNSName(name)


def _write_key(path: Path, key: Key) -> None:
    data = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    _write(path, data, 0o600)


def _write(path: Path, data: bytes, mode: int) -> None:
    """Whole or not at all, and never readable by more than `mode` lets."""
    fresh = path.with_name(f".{path.name}.new")
    fresh.unlink(missing_ok=True)
    with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)
