"""A model server as it last described itself."""

from __future__ import annotations

from dataclasses import dataclass

SERVING = "serving"
UNREACHABLE = "unreachable"


@dataclass(frozen=True, slots=True)
class Server:
    member_id: str
    address: str
    incarnation: str
    """New at every start: grants and cached prefixes of an older one are void."""
    phase: str
    """"serving" when it may be granted steps, else why not: what it says of itself ("loading",
    "draining"), or UNREACHABLE."""
    max_steps: int
    """Sequences that fit one engine step."""
    block_tokens: int
    total_blocks: int
    running: int = 0
    waiting: int = 0
    """Sequences in the engine's batch, and waiting at its door."""
    running_steps: int = 0
    waiting_steps: int = 0
    """The steps of these; one of `n` choices is `n` sequences."""
    free_blocks: int = 0
    max_context: int = 0
    weight_seq: int = 0
    seen_at: float = 0.0
    """Monotonic seconds of this description."""

    @property
    def serving(self) -> bool:
        return self.phase == SERVING

    @property
    def occupied(self) -> int:
        return self.running + self.waiting
