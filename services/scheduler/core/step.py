"""A step as its router asks for it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum


class Window(IntEnum):
    """When the answer is wanted; the numbers are those of `impala.common.v1.Window`."""

    ASAP = 1
    STANDARD = 2
    FLEX = 3
    BATCH = 4


@dataclass(frozen=True, slots=True)
class Step:
    """Times are the scheduler's monotonic seconds."""

    step_id: str
    arrived: float
    prompt_tokens: int
    hashes: tuple[bytes, ...] = ()
    """Content hashes of the prompt's full blocks (`libs.hashing.BLOCK_TOKENS` tokens each)."""
    max_tokens: int = 0
    """Per choice; 0 = up to the model's context."""
    choices: int = 1
    window: Window = Window.STANDARD
    account: str = ""
    job_id: str = ""
    trace_id: str = ""
    run_id: str = ""
    router_id: str = ""
    exclude_member: str = ""
    """A server that just refused the step: taken only if no other may have it."""
