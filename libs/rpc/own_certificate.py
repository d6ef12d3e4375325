"""What is wrong with this member's own certificate, said in its own log: peers only hang up."""

from __future__ import annotations

import logging
import ssl
import stat
from collections.abc import Iterator
from pathlib import Path

from libs.rpc.tls import read_ca, read_pair

log = logging.getLogger(__name__)

_ROUNDS = 10
"""More than a handshake takes."""


def look_over(cert: Path, key: Path, ca: Path | None) -> None:
    """Logs what is wrong with files that can be used. ca: of the cluster; None: no peer is shown
    the certificate. Raises ConfigError for those that cannot."""
    read_pair(cert, key)
    if ca is not None:
        read_ca(ca)
    for complaint in complaints(cert, key, ca):
        log.warning("%s", complaint)


def complaints(cert: Path, key: Path, ca: Path | None) -> Iterator[str]:
    if ca is not None and (why := refused(cert, key, ca)):
        yield (
            f"The certificate {cert} is refused by every member that trusts {ca} ({why}): renew it,"
            " or give the CA that signed it."
        )
    if key.stat().st_mode & (stat.S_IROTH | stat.S_IWOTH):
        yield f"The key {key} can be read or changed by every user of this machine: chmod 600 it."


def refused(cert: Path, key: Path, ca: Path) -> str:
    """Why two members that have these files would not speak to each other; empty: they would. The
    host is not looked at. Found by a handshake in memory, which looks at all else that peers do.
    Raises OSError for files that are no certificates."""
    server, client = (
        ssl.SSLContext(kind) for kind in (ssl.PROTOCOL_TLS_SERVER, ssl.PROTOCOL_TLS_CLIENT)
    )
    client.check_hostname = False
    for side in (server, client):
        side.verify_mode = ssl.CERT_REQUIRED
        side.load_verify_locations(ca)
        side.load_cert_chain(cert, key)
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    undone = [client.wrap_bio(back, there), server.wrap_bio(there, back, server_side=True)]
    try:
        for _ in range(_ROUNDS):
            undone = [side for side in undone if not _is_done(side)]
    except ssl.SSLError as error:
        return getattr(error, "verify_message", "") or error.reason or str(error)
    return "the handshake does not end" if undone else ""


def _is_done(side: ssl.SSLObject) -> bool:
    try:
        side.do_handshake()
    except ssl.SSLWantReadError:
        return False
    return True
