"""A value made of files, made again when they have changed: certificates are renewed in place."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, TypeVar

log = logging.getLogger(__name__)

LOOK_EVERY_S = 1.0
"""A renewed file is seen after at most so long."""

Value = TypeVar("Value")


class Reloaded(Generic[Value]):
    """`current()` is what `make` last made of the files. Files that cannot be read, or make no
    value, leave the old one in place, with one warning: they may be half written.

    Any thread may ask. Raises what `make` raises, at the start only.
    """

    def __init__(
        self,
        paths: Sequence[Path],
        make: Callable[[], Value],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._paths = tuple(paths)
        self._make = make
        self._now = now
        self._lock = threading.Lock()
        self._seen = self._told = self._state()
        self._value = make()
        self._looked = now()

    def current(self) -> Value:
        with self._lock:
            if self._now() - self._looked >= LOOK_EVERY_S:
                self._look()
            return self._value

    def _look(self) -> None:
        self._looked = self._now()
        state = self._state()
        if state == self._seen:
            return
        names = ", ".join(map(str, self._paths))
        try:
            self._value = self._make()
        except Exception as error:  # noqa: BLE001  # whatever they hold now, the old value holds
            # Looked at again and again: what was wrong may mend without another change that shows,
            # as a file's mode or owner does, or too many open files.
            if state != self._told:
                self._told = state
                log.warning("%s have changed and are not used: %s", names, error)
        else:
            self._seen = self._told = state
            log.info("%s are read again", names)

    def _state(self) -> tuple[tuple[int, ...] | None, ...]:
        """Changes with what the paths lead to: a file in place of another, also behind a link."""
        return tuple(map(_stamp, self._paths))


def _stamp(path: Path) -> tuple[int, ...] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns
