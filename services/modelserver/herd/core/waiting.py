"""The queue of sequences that are not running, in the order of their turn."""

from bisect import bisect_left, insort
from collections.abc import Iterator

from services.modelserver.herd.core.sequence import Sequence, Status


class WaitingQueue:
    """Ordered by priority; within one, preempted sequences first, then by arrival."""

    def __init__(self) -> None:
        self._queue: list[Sequence] = []

    def __len__(self) -> int:
        return len(self._queue)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._queue)

    def push(self, seq: Sequence) -> None:
        insort(self._queue, seq, key=_turn)

    def remove(self, seq: Sequence) -> None:
        """The sequence must be queued and its status unchanged since."""
        del self._queue[bisect_left(self._queue, _turn(seq), key=_turn)]


def _turn(seq: Sequence) -> tuple[int, bool, int]:
    return seq.priority, seq.status is not Status.PREEMPTED, seq.arrival
