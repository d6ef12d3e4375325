"""Whose turn is next: the queue of steps without a grant.

Each window has a patience. A step's turn is its arrival plus its window's patience, earliest first:
an interactive step passes all batch work that came within the last half hour, and no work of any
window waits behind later arrivals for longer than the difference of two patiences. The turn never
changes while a step waits, so ageing costs nothing.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping

from services.scheduler.core.step import Step, Window

PATIENCE_S: Mapping[Window, float] = {
    Window.ASAP: 0.0,
    Window.STANDARD: 60.0,
    Window.FLEX: 600.0,
    Window.BATCH: 1800.0,
}


def turn(step: Step) -> float:
    """Monotonic seconds; the lowest goes first."""
    return step.arrived + PATIENCE_S[step.window]


class WaitingSteps:
    """Steps in the order of their turn, then of arrival. Leaving is by id, at any place."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, str]] = []
        self._steps: dict[str, Step] = {}
        self._tickets: dict[str, int] = {}
        self._issued = 0

    def __len__(self) -> int:
        return len(self._steps)

    def __contains__(self, step_id: str) -> bool:
        return step_id in self._steps

    def __iter__(self) -> Iterator[Step]:
        """In no particular order."""
        return iter(self._steps.values())

    def push(self, step: Step) -> None:
        """The step must not wait already."""
        assert step.step_id not in self._steps
        self._issued += 1
        self._steps[step.step_id] = step
        self._tickets[step.step_id] = self._issued
        heapq.heappush(self._heap, (turn(step), self._issued, step.step_id))

    def first(self) -> Step | None:
        while self._heap:
            _, ticket, step_id = self._heap[0]
            if self._tickets.get(step_id) == ticket:
                return self._steps[step_id]
            heapq.heappop(self._heap)
        return None

    def remove(self, step_id: str) -> bool:
        """False when it does not wait."""
        self._tickets.pop(step_id, None)
        found = self._steps.pop(step_id, None) is not None
        if len(self._heap) > 2 * len(self._steps) + 64:
            self._drop_left()
        return found

    def _drop_left(self) -> None:
        self._heap = [item for item in self._heap if self._tickets.get(item[2]) == item[1]]
        heapq.heapify(self._heap)
