"""What goes into the engine and what comes out, as values that cross the thread boundary once."""

from collections.abc import Sequence
from dataclasses import dataclass

from services.modelserver.herd.core.plan import FinishReason, Lookup
from services.modelserver.herd.core.sequence import Limits
from services.modelserver.herd.engine.sampled import TokenLogprobs
from services.modelserver.herd.engine.sampling_params import SamplingParams


@dataclass(frozen=True, slots=True)
class StepSpec:
    """One step as the engine runs it: a prompt and `n` choices of output."""

    step_id: str
    prompt: Sequence[int]
    salt: bytes
    """16 bytes, the account's: content hashes and so KV keys start from it."""
    limits: Limits
    sampling: tuple[SamplingParams, ...]
    """One a choice; they differ in their seed, which is always set."""
    priority: int = 0

    @property
    def n(self) -> int:
        """Choices."""
        return len(self.sampling)


@dataclass(frozen=True, slots=True)
class Admitted:
    """A step entered the batch for the first time."""

    step_id: str
    cached_tokens: int
    at: float
    """Engine clock, seconds."""


@dataclass(frozen=True, slots=True)
class ChoiceUpdate:
    """What one engine step did to one choice."""

    step_id: str
    choice: int
    tokens: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...]
    """As many as tokens when asked for, else empty."""
    finish: FinishReason | None
    stopped_by_token: bool


@dataclass(frozen=True, slots=True)
class StepEnded:
    """The last word on a step: every choice has ended and its blocks are released."""

    step_id: str
    engine_s: float
    """Its share of the engine steps it took part in."""
    preemptions: int
    prompt_tokens: int
    """Prompt tokens whose KV it found or had computed, once each: all of them unless it was ended
    before its first token."""
    cached_tokens: int
    """Of these, found."""
    prompt_hashes: tuple[bytes, ...]
    output_hashes: tuple[bytes, ...]
    """Content hashes of the first choice's full blocks behind the prompt's."""
    faulty: bool = False
    """The model raised on this step alone: what was sampled before is no answer."""


@dataclass(frozen=True, slots=True)
class StoredBlock:
    """A block that left the pool, copied out before it was overwritten."""

    key: bytes
    parent: bytes | None
    tokens: tuple[int, ...]
    payload: memoryview


@dataclass(frozen=True, slots=True)
class FetchedBlock:
    """A verified block from a lower tier, for the engine to put into the pool."""

    tokens: tuple[int, ...]
    payload: bytes


@dataclass(frozen=True, slots=True)
class StepOutcome:
    """Everything one engine step has to tell the shell: the one hand-off a step."""

    admitted: tuple[Admitted, ...] = ()
    updates: tuple[ChoiceUpdate, ...] = ()
    ended: tuple[StepEnded, ...] = ()
    stores: tuple[StoredBlock, ...] = ()
    lookups: tuple[Lookup, ...] = ()
    busy_s: float = 0.0
    fed_tokens: int = 0
    sampled_tokens: int = 0

    @property
    def is_empty(self) -> bool:
        return not (self.admitted or self.updates or self.ended or self.stores or self.lookups)
