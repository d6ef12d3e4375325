"""A folder as `--tls` takes it, signed by a CA elsewhere."""

from __future__ import annotations

import shutil
from pathlib import Path

from libs.testing.tls import Authority
from services.cli.tls_files import TlsFiles


def folder_of(path: Path, authority: Authority, *, dns: str = "") -> TlsFiles:
    """For 127.0.0.1, or instead for the host `dns`."""
    files = TlsFiles(path)
    path.mkdir()
    cert, key = authority.issue("mine", dns=dns)
    for source, target in ((cert, files.cert), (key, files.key), (authority.cert, files.ca)):
        shutil.copy(source, target)
    return files
