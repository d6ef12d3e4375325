"""Why a step was placed where it was: records kept for people, in bounded memory."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ScoredServer:
    member_id: str
    why_not: str
    """Empty = eligible."""
    scores: Mapping[str, float]
    """Scorer name -> [0, 1]; empty when not eligible."""
    total: float


@dataclass(frozen=True, slots=True)
class Decision:
    step_id: str
    trace_id: str
    at: float
    """Monotonic seconds."""
    chosen: str
    """Member id; empty = nobody may have the step now."""
    servers: tuple[ScoredServer, ...]
    why: str
    """One sentence."""


class DecisionHistory:
    """The last placements. A step placed twice keeps both until they age out."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._decisions: OrderedDict[int, Decision] = OrderedDict()
        self._added = 0

    def __len__(self) -> int:
        return len(self._decisions)

    def add(self, decision: Decision) -> None:
        self._added += 1
        self._decisions[self._added] = decision
        if len(self._decisions) > self._capacity:
            self._decisions.popitem(last=False)

    def find(self, step_id: str = "", trace_id: str = "") -> list[Decision]:
        """Of that step or that trace, newest first."""
        return [
            decision
            for decision in reversed(self._decisions.values())
            if (step_id and decision.step_id == step_id)
            or (trace_id and decision.trace_id == trace_id)
        ]
