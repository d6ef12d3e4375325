"""The file that a service's output goes to."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from pathlib import Path

MOST_BYTES = 16 << 20
TAIL_BYTES = 1 << 15


class Log:
    """STATE/logs/NAME.log, and what was there before as NAME.log.1.

    The process appends to it by a descriptor of its own (O_APPEND). So a file that has become too
    long is copied and emptied, not renamed; what is written in the moment between is lost.
    """

    def __init__(self, folder: Path, name: str) -> None:
        self.path = folder / f"{name}.log"
        self.before = folder / f"{name}.log.1"

    def rotate(self) -> None:
        """Before a start, while nobody writes."""
        if self.path.exists():
            self.path.replace(self.before)

    def bound(self, most_bytes: int = MOST_BYTES) -> None:
        """Makes room if it is longer than that, while it is written to. What cannot be kept, as on
        a full disk, is dropped."""
        try:
            if self.path.stat().st_size <= most_bytes:
                return
        except FileNotFoundError:
            return
        try:
            shutil.copyfile(self.path, self.before)
        except OSError:
            self.before.unlink(missing_ok=True)
        os.truncate(self.path, 0)

    def note(self, text: str) -> None:
        """A line of the supervisor's own. Nothing depends on it: a full disk must not end what
        runs."""
        clock = time.strftime("%H:%M:%S")
        with contextlib.suppress(OSError), self.path.open("a") as file:
            file.write(f"{clock} -- {text}\n")

    def tail(self) -> list[str]:
        """The last lines, without the supervisor's."""
        with contextlib.suppress(FileNotFoundError), self.path.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL_BYTES))
            lines = file.read().decode(errors="replace").splitlines()
            return [line for line in lines if line.strip() and line[9:11] != "--"]
        return []
