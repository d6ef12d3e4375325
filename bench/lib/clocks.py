"""Wall time, or CPU time where the machine is not ours alone."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

READ: dict[str, Callable[[], float]] = {"wall": time.perf_counter, "cpu": time.process_time}
CLOCKS = tuple(READ)


@dataclass(frozen=True, slots=True)
class Clock:
    """`cpu` is the sum over all threads: a duration with one thread only."""

    name: str

    def seconds(self, run: Callable[[], object]) -> float:
        """How long `run` took."""
        read = READ[self.name]
        started = read()
        run()
        return read() - started
