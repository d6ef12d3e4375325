"""etcd's password, from a file: never a flag, which any user of the machine could read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from libs.cluster.fate import refused


def password_in(file: Path) -> Callable[[], str]:
    """Reads it anew at each login, without the newline at its end; a changed password takes effect
    without a restart. PermissionRefused where the file cannot be read."""

    def read() -> str:
        try:
            return file.read_text().rstrip("\r\n")
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is not text"
            raise refused(f"the password file {file} cannot be read: {why}") from None

    return read
