"""A folder in which nothing can be written for a while, also not by root."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

from libs.testing.waiting import eventually

WITHIN_S = 60.0


@contextlib.contextmanager
def mounted(folder: Path) -> Iterator[None]:
    """`folder`, made where it is missing, as one that can be `frozen`: for root, whom no mode of a
    folder keeps from writing, as a mount of its own."""
    folder.mkdir(parents=True, exist_ok=True)
    if os.geteuid() != 0:
        yield
        return
    _run("mount", "--bind", str(folder), str(folder))
    try:
        yield
    finally:
        _run("umount", "--lazy", str(folder))


@contextlib.asynccontextmanager
async def frozen(folder: Path) -> AsyncIterator[None]:
    """Nothing can be written there. A file that is being written holds a mount up for a moment."""
    if os.geteuid() != 0:
        folders = [Path(each) for each, _, _ in os.walk(folder)]
        for each in folders:
            each.chmod(0o555)
        try:
            yield
        finally:
            for each in folders:
                each.chmod(0o755)
        return
    await eventually(lambda: _remount("ro", folder), within_s=WITHIN_S)
    try:
        yield
    finally:
        if not _remount("rw", folder):
            raise RuntimeError(f"{folder} cannot be written again")


def _remount(mode: str, folder: Path) -> bool:
    command = ["mount", "-o", f"remount,{mode},bind", str(folder)]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)
