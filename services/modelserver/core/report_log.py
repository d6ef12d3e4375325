"""Step reports that the leader has not acknowledged yet.

At least once, counted once: a report keeps its sequence number (per incarnation, from 1, without
gaps) until a leader has booked everything up to it; a new leader gets the rest again.
"""

from collections import deque
from itertools import islice
from typing import Generic, TypeVar

R = TypeVar("R")


class ReportLog(Generic[R]):
    """One writer. Holds what is not acknowledged; nothing is ever dropped unasked."""

    def __init__(self) -> None:
        self._pending: deque[tuple[int, R]] = deque()
        self._next = 1

    def append(self, report: R) -> int:
        """The report's sequence number."""
        sequence = self._next
        self._next += 1
        self._pending.append((sequence, report))
        return sequence

    @property
    def acknowledged(self) -> int:
        """The sequence up to which all is forgotten; 0 = none."""
        return self._next - 1 - len(self._pending)

    @property
    def last(self) -> int:
        """The sequence of the newest report; 0 = there was none."""
        return self._next - 1

    def after(self, sequence: int, limit: int) -> list[tuple[int, R]]:
        """The oldest reports behind `sequence` that are not acknowledged, at most `limit`."""
        start = max(0, sequence - self.acknowledged)
        return list(islice(self._pending, start, start + limit))

    def acknowledge(self, sequence: int) -> int:
        """Forget everything up to `sequence`; how many that were. Older answers change nothing."""
        forgotten = 0
        while self._pending and self._pending[0][0] <= sequence:
            self._pending.popleft()
            forgotten += 1
        return forgotten

    def __len__(self) -> int:
        return len(self._pending)
