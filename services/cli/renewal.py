"""Certificates made here do not end while the instance runs: they are looked at now and then, and
services read renewed files by themselves."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime

from services.cli.certificates import keep
from services.cli.tls_files import TlsFiles

LOOK_EVERY_S = 12 * 3600.0


def see_to(files: TlsFiles, host: str, now: datetime) -> str:
    """Makes or renews what must be; one line that says so, or nothing. Raises OSError."""
    done = keep(files.folder, host, now)
    if done == "made":
        return f"made a CA for this instance: {files.ca}"
    if done == "renewed":
        return f"renewed the certificate {files.cert}; the CA is as it was"
    return ""


async def see_to_always(
    files: TlsFiles,
    host: str,
    say: Callable[[str], None],
    *,
    every_s: float = LOOK_EVERY_S,
    clock: Callable[[], datetime] = lambda: datetime.now(UTC),
) -> None:
    """Ends by being cancelled only: a folder that cannot be written is tried again."""
    while True:
        await asyncio.sleep(every_s)
        try:
            said = await asyncio.to_thread(see_to, files, host, clock())
        except OSError as error:
            said = f"the certificate {files.cert} cannot be renewed: {error.strerror}"
        if said:
            say(said)
