"""Whether an engine step goes on for too long to end at all.

Time is judged by looks at it, made at an even pace: what passed between two looks counts for as
much as the pace allows. A process that was paused, or got no processor, could not work either, and
is not taken for one that hangs.
"""

from __future__ import annotations

from dataclasses import dataclass

LOOKS = 20
"""Looks in the time of the limit."""
_SLACK = 2.0


@dataclass(slots=True)
class StepWatch:
    """`look` every `every_s` seconds. limit_s: seconds that one step may take; > 0."""

    limit_s: float
    _step: int | None = None
    _looked_at: float = 0.0
    _running_s: float = 0.0

    @property
    def every_s(self) -> float:
        return self.limit_s / LOOKS

    def look(self, step: int | None, now: float) -> bool:
        """Whether the step is given up. step: the number of the one that runs, another one each
        time; None between steps. now: monotonic seconds."""
        if step is None or step != self._step:
            self._running_s = 0.0
        else:
            self._running_s += min(now - self._looked_at, _SLACK * self.every_s)
        self._step, self._looked_at = step, now
        return self._running_s >= self.limit_s
