"""How long to wait before a process that ended is started again."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Backoff:
    """Doubles from `first_s` to `longest_s`; a life of `healthy_s` or more after it got ready
    counts as recovered, and the next failure is a first one again. All in seconds."""

    first_s: float = 0.25
    longest_s: float = 30.0
    healthy_s: float = 20.0

    def wait_s(self, failures: int) -> float:
        """Before the restart that follows the `failures`-th failure in a row (1 = the first)."""
        if failures < 1:
            raise ValueError("a restart follows at least one failure")
        # The exponent is bounded so that a week of failures does not overflow.
        return float(min(self.longest_s, self.first_s * 2 ** min(failures - 1, 30)))

    def failures_after(self, before: int, ready_s: float | None) -> int:
        """Failures in a row once a life has ended that was ready for `ready_s` (None = never)."""
        recovered = ready_s is not None and ready_s >= self.healthy_s
        return 1 if recovered else before + 1
