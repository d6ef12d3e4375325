"""Which server gets the step: filters, then scorers in [0, 1], then a picker."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from services.scheduler.core.admission import Candidate, no_place
from services.scheduler.core.decision import Decision, ScoredServer
from services.scheduler.core.step import Step

Filter = Callable[[Step, Candidate], str]
"""Why the server is out; empty = it stays."""

Scorer = Callable[[Step, Candidate], float]
"""How good the server is for the step, in [0, 1]."""


@dataclass(frozen=True, slots=True)
class Weighted:
    name: str
    score: Scorer
    weight: float


def not_serving(step: Step, candidate: Candidate) -> str:
    return "" if candidate.server.serving else "not serving"


def just_refused(step: Step, candidate: Candidate) -> str:
    refused = candidate.server.member_id == step.exclude_member
    return "it just refused the step" if refused else ""


def prefix_score(step: Step, candidate: Candidate) -> float:
    """The share of the prompt that need not be computed."""
    if step.prompt_tokens <= 0:
        return 0.0
    return min(1.0, candidate.cached_tokens / step.prompt_tokens)


def load_score(step: Step, candidate: Candidate) -> float:
    """1 = idle, 0 = as many sequences as it may be granted."""
    return max(0.0, 1.0 - candidate.load / candidate.capacity)


def room_score(step: Step, candidate: Candidate) -> float:
    """The share of its KV pool that nobody reserved."""
    total = candidate.server.total_blocks
    return max(0.0, 1.0 - candidate.reserved_blocks / total) if total else 0.0


FILTERS: tuple[Filter, ...] = (not_serving, no_place)
SCORERS: tuple[Weighted, ...] = (
    Weighted("prefix", prefix_score, 1.0),
    Weighted("load", load_score, 1.0),
    Weighted("room", room_score, 0.25),
)


def place(
    step: Step,
    candidates: Sequence[Candidate],
    at: float,
    filters: Sequence[Filter] = FILTERS,
    scorers: Sequence[Weighted] = SCORERS,
) -> Decision:
    """The decision, with why. A server that just refused the step is taken if no other may be."""
    servers = _scored(step, candidates, (*filters, just_refused), scorers)
    if step.exclude_member and not any(server.why_not == "" for server in servers):
        servers = _scored(step, candidates, filters, scorers)
    eligible = [server for server in servers if server.why_not == ""]
    if not eligible:
        return Decision(step.step_id, step.trace_id, at, "", servers, "no server may take it now")
    # Of equal ones the first name: the same snapshot gives the same answer.
    best = min(eligible, key=lambda server: (-server.total, server.member_id))
    return Decision(step.step_id, step.trace_id, at, best.member_id, servers, _why(best, eligible))


def _scored(
    step: Step,
    candidates: Sequence[Candidate],
    filters: Sequence[Filter],
    scorers: Sequence[Weighted],
) -> tuple[ScoredServer, ...]:
    return tuple(_score(step, candidate, filters, scorers) for candidate in candidates)


def _score(
    step: Step, candidate: Candidate, filters: Sequence[Filter], scorers: Sequence[Weighted]
) -> ScoredServer:
    member_id = candidate.server.member_id
    for check in filters:
        if why_not := check(step, candidate):
            return ScoredServer(member_id, why_not, {}, 0.0)
    scores = {scorer.name: scorer.score(step, candidate) for scorer in scorers}
    total = sum(scorer.weight * scores[scorer.name] for scorer in scorers)
    return ScoredServer(member_id, "", scores, total)


def _why(best: ScoredServer, eligible: Sequence[ScoredServer]) -> str:
    if len(eligible) == 1:
        return f"{best.member_id} is the only server that may take it"
    shown = ", ".join(f"{name} {score:.2f}" for name, score in best.scores.items())
    return f"{best.member_id} is the best of {len(eligible)} servers ({shown})"
