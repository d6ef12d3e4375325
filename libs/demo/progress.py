"""One line of progress on stderr: rewritten on a terminal, printed now and then elsewhere.

Standard library only: the set-up uses it before anything is installed.
"""

from __future__ import annotations

import shutil
import sys
import time
from typing import TextIO

BAR_WIDTH = 30
QUIET_SECONDS = 10.0
"""Without a terminal, a line is printed at most this often, so that logs stay short."""


def bar(done: int, total: int) -> str:
    """How much of `total` bytes has come, as a bar and in megabytes."""
    filled = "#" * int(min(done / total, 1.0) * BAR_WIDTH)
    return f"[{filled:<{BAR_WIDTH}}] {done / 1e6:.0f} of {total / 1e6:.0f} MB"


class Progress:
    """Shows how far one named piece of work is. Not thread-safe: one writer."""

    def __init__(self, name: str, out: TextIO = sys.stderr) -> None:
        self._name = name
        self._out = out
        self._terminal = out.isatty()
        self._start = self._shown = time.monotonic()

    def update(self, text: str) -> None:
        now = time.monotonic()
        line = f"{self._name}: {text} ({now - self._start:.0f} s)"
        if self._terminal:
            width = shutil.get_terminal_size().columns - 1
            self._out.write(f"\r\x1b[K{line[:width]}")
            self._out.flush()
        elif now - self._shown >= QUIET_SECONDS:
            self._shown = now
            print(line, file=self._out, flush=True)

    def done(self, text: str) -> None:
        """Says how it ended; what follows starts on a new line."""
        self.clear()
        seconds = time.monotonic() - self._start
        print(f"{self._name}: {text} ({seconds:.0f} s)", file=self._out, flush=True)

    def clear(self) -> None:
        """Takes the line away, to make room for a message."""
        if self._terminal:
            self._out.write("\r\x1b[K")
            self._out.flush()
