"""How long the tasks of a run took: a task is a trace, or a line that names none.

A task lasts from the beginning of its first step to the end of its last. Which step is the last is
known at the run's end only, so that a task's time grows with each of its lines that ends.
"""

import hashlib


class TaskSpans:
    """Of each trace a short name and two times are kept; of a line without one nothing."""

    def __init__(self) -> None:
        self._spans: dict[bytes, tuple[float, float]] = {}

    def extend(self, trace: str, began_s: float, ended_s: float) -> tuple[float | None, float]:
        """A step of the trace ("" = none) is done; its times are Unix seconds. Seconds that its
        task had taken before, None for a new task, and those that it has taken now."""
        if not trace:
            return None, ended_s - began_s
        name = hashlib.blake2b(trace.encode(), digest_size=8).digest()
        span = self._spans.get(name)
        if span is None:
            self._spans[name] = (began_s, ended_s)
            return None, ended_s - began_s
        first, last = min(span[0], began_s), max(span[1], ended_s)
        self._spans[name] = (first, last)
        return span[1] - span[0], last - first
