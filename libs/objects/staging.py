"""Atomic, durable writes in a local folder.

obstore's own local store writes `KEY#1` beside the object and renames it: atomic, but nothing is
synced (0.12 does not pass on the option), so a power cut could leave a named object with missing
bytes, and what a killed writer leaves behind is never removed. So local writes are done here:

1. a temporary file in `.staging/`, held under an exclusive `flock` by its writer;
2. write, `fsync` the file;
3. `rename` it to its name (or `link` where the name must be new), `fsync` the folder.

A reader sees the whole object or none. A killed writer loses its lock with its life, so `sweep`
can tell a dead writer's file from a live one's without guessing by age.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import uuid
from pathlib import Path

STAGING = ".staging"


class StagedFile:
    """One object being written. Blocking; one caller at a time; ends in `publish` or `discard`."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._fd, self._path = _create_locked(root / STAGING)

    def write(self, data: bytes | memoryview) -> None:
        view = memoryview(data).cast("B")
        while view:
            view = view[os.write(self._fd, view) :]

    def publish(self, key: str, only_if_absent: bool = False) -> bool:
        """Makes the object visible. False: `only_if_absent` and the key is taken.

        The temporary file is gone afterwards, whatever the outcome.
        """
        try:
            os.fsync(self._fd)
            target = self._root / key
            _make_folders(self._root, target.parent)
            if only_if_absent:
                try:
                    os.link(self._path, target)
                except FileExistsError:
                    return False
            else:
                os.rename(self._path, target)
            _sync_folder(target.parent)
            return True
        finally:
            self.discard()

    def discard(self) -> None:
        """Removes what was written. Does nothing the second time."""
        if self._fd >= 0:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._path)
            os.close(self._fd)
            self._fd = -1


def prepare(root: Path) -> None:
    """Creates the folder where needed and removes what dead writers left."""
    (root / STAGING).mkdir(parents=True, exist_ok=True)
    sweep(root)


def is_there(root: Path) -> bool:
    """Whether the folder is still the one that was prepared, and not gone, replaced by a file or
    unmounted."""
    return (root / STAGING).is_dir()


def sweep(root: Path) -> int:
    """Removes the temporary files whose writer is dead; returns how many."""
    removed = 0
    for path in sorted((root / STAGING).iterdir()):
        with contextlib.suppress(FileNotFoundError):
            fd = os.open(path, os.O_RDWR)
            try:
                if _try_lock(fd):
                    path.unlink()
                    removed += 1
            finally:
                os.close(fd)
    return removed


def _create_locked(staging: Path) -> tuple[int, Path]:
    while True:
        path = staging / uuid.uuid4().hex
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
        # A sweep may have come between creation and lock; then the file is gone, or is the
        # sweep's to remove.
        if _try_lock(fd) and os.fstat(fd).st_nlink == 1:
            return fd, path
        os.close(fd)


def _try_lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _make_folders(root: Path, folder: Path) -> None:
    """Like mkdir -p, and each new folder's name is durable before anything is put in it."""
    missing = []
    while folder != root and not folder.is_dir():
        missing.append(folder)
        folder = folder.parent
    for new in reversed(missing):
        new.mkdir(exist_ok=True)
        _sync_folder(new.parent)


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
