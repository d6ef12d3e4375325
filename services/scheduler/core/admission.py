"""Whether a server may take one more step now."""

from __future__ import annotations

from dataclasses import dataclass

from services.scheduler.core.server import Server
from services.scheduler.core.step import Step


@dataclass(frozen=True, slots=True)
class AdmissionLimits:
    overcommit: float = 1.5
    """Steps granted per sequence of the engine's batch: enough at its door that the batch stays
    full, while the queue stays here, where order can still be decided."""
    expected_output_tokens: int = 256
    """KV reserved for a choice's output; longer ones are the engine's to preempt."""
    max_queue: int = 20_000
    """Waiting steps; the next one is refused."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A server with what it is committed to, and what it would mean for one step."""

    server: Server
    load: int
    """Sequences it has or was granted."""
    reserved_blocks: int
    cached_tokens: int
    """Prompt tokens of the step it probably holds."""
    blocks: int
    """KV blocks the step would add."""
    capacity: int
    """Sequences it may be granted."""


def capacity(server: Server, limits: AdmissionLimits) -> int:
    """Sequences that a server may be granted in all; at least 1."""
    return max(1, int(server.max_steps * limits.overcommit))


def blocks_needed(
    step: Step, block_tokens: int, cached_tokens: int, limits: AdmissionLimits
) -> int:
    """KV blocks (of `block_tokens` tokens) to reserve; a cached prefix is shared, not added."""
    output = limits.expected_output_tokens
    if step.max_tokens:
        output = min(output, step.max_tokens)
    tokens = max(0, step.prompt_tokens - cached_tokens) + output * step.choices
    return -(-tokens // max(1, block_tokens))


def no_place(step: Step, candidate: Candidate) -> str:
    """Why the server cannot take the step now; empty = it can. An empty server takes any step:
    what can never run is refused by the server itself, with a reason that names the field."""
    if candidate.load == 0:
        return ""
    if candidate.load + step.choices > candidate.capacity:
        return f"full: {candidate.load} of {candidate.capacity} sequences"
    total = candidate.server.total_blocks
    if total and candidate.reserved_blocks + candidate.blocks > total:
        return f"no KV room: {candidate.reserved_blocks} of {total} blocks reserved"
    return ""
