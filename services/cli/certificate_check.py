"""Whether an instance can run with the certificates that somebody gave: said at the start in one
sentence, and not by every service in its log."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from cryptography import x509

from libs.config import ConfigError
from libs.rpc.own_certificate import refused
from libs.rpc.tls import read_ca, read_pair
from services.cli.certificates import names_of
from services.cli.errors import CliError
from services.cli.net import HOST
from services.cli.tls_files import TlsFiles

OR_MADE = "or give --tls without a folder, which makes its own"


class UnusableTls(CliError):
    """Names the file and the remedy."""


def check(files: TlsFiles, now: datetime) -> None:
    """That members on this machine can show the certificate to each other. now: aware of its time
    zone. Raises UnusableTls."""
    _check_there(files)
    try:
        key_and_cert = read_pair(files.cert, files.key)
        authorities = x509.load_pem_x509_certificates(read_ca(files.ca))
        certificate = x509.load_pem_x509_certificates(key_and_cert[1])[0]
    except ConfigError as error:
        raise UnusableTls(f"{str(error).rstrip('.')}: give others, {OR_MADE}.") from error
    except ValueError as error:
        raise UnusableTls(
            f"{files.folder} has a certificate that cannot be read ({error}): give another, "
            f"{OR_MADE}."
        ) from error
    _check_dates(files.cert, certificate, now)
    if len(authorities) == 1:
        _check_dates(files.ca, authorities[0], now)
    if HOST not in names_of(certificate):
        names = ", ".join(names_of(certificate)) or "no host"
        raise UnusableTls(
            f"The certificate {files.cert} is for {names}, not for {HOST}, where an instance "
            f"listens: have it issued for {HOST} too, {OR_MADE}."
        )
    if why := refused(files.cert, files.key, files.ca):
        raise UnusableTls(
            f"The certificate {files.cert} is refused by who trusts {files.ca} ({why}): give the "
            f"CA that signed it, and a certificate for servers and clients, {OR_MADE}."
        )


def _check_there(files: TlsFiles) -> None:
    if not files.folder.is_dir():
        raise UnusableTls(
            f"--tls names {files.folder}, which is no folder: give one with tls.crt, tls.key and "
            f"ca.crt, {OR_MADE}."
        )
    missing = [path.name for path in (files.cert, files.key, files.ca) if not path.is_file()]
    if missing:
        raise UnusableTls(
            f"The folder {files.folder} of --tls lacks {' and '.join(missing)}: it must have "
            f"tls.crt, tls.key and ca.crt; put them there, {OR_MADE}."
        )


def _check_dates(path: Path, certificate: x509.Certificate, now: datetime) -> None:
    start, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if now > end:
        raise UnusableTls(
            f"The certificate {path} expired on {end:%Y-%m-%d %H:%M} UTC: renew it, {OR_MADE}."
        )
    if now < start:
        raise UnusableTls(
            f"The certificate {path} is valid from {start:%Y-%m-%d %H:%M} UTC on, and now it is "
            f"{now:%Y-%m-%d %H:%M}: set this machine's clock right, {OR_MADE}."
        )
