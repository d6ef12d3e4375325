"""What the batcher hands to the shell: plain values, valid until the plan is committed."""

from dataclasses import dataclass
from enum import StrEnum

SeqId = str
BlockId = int


class FinishReason(StrEnum):
    """Why a sequence ended."""

    STOP = "stop"
    """A stop token, or a stop string that the shell found."""
    LENGTH = "length"
    """max_tokens were sampled."""
    ABORT = "abort"
    """The caller went away or the shell gave up on it."""
    ERROR = "error"
    """The model cannot run it."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Tokens of one sequence to feed in this step."""

    seq_id: SeqId
    start: int
    """Position of the first token fed = number of tokens whose KV is already in the blocks."""
    count: int
    """Tokens fed, at least 1."""
    block_table: tuple[BlockId, ...]
    """Blocks of positions 0.. in order; covers start + count, the last may be part-filled."""
    tokens: tuple[int, ...]
    """The `count` token ids to feed."""
    sample: bool
    """The chunk ends at the last known token: the runner must sample what follows it."""


@dataclass(frozen=True, slots=True)
class EvictedBlock:
    """A cached block about to be overwritten. Its bytes are whole until the step (or the load)
    that got the block writes to it: copy them to a lower tier before that, or lose them."""

    block: BlockId
    key: bytes
    """KV key."""
    content_hash: bytes
    tokens: tuple[int, ...]
    """The block's BLOCK_TOKENS token ids."""
    parent: bytes | None
    """KV key of the block before it; None for a first block."""


@dataclass(frozen=True, slots=True)
class Lookup:
    """Ask the external tier which of `keys` it holds, counting from the first, without a gap.

    Answer with `external_found` (then `external_loaded` or `external_failed`) or, if the lookup
    itself failed, with `external_failed`. The sequence waits until then: give it a deadline.
    """

    seq_id: SeqId
    keys: tuple[bytes, ...]
    """KV keys of the sequence's blocks after its local hit."""
    first_block_index: int
    """Index within the sequence of the block that keys[0] names = length of the local hit."""


@dataclass(frozen=True, slots=True)
class Reservation:
    """Blocks to fill from the external tier."""

    blocks: tuple[BlockId, ...]
    """One per leading key of the lookup; may be fewer than were found, or none: then there is
    no load and nothing more to answer."""
    evicted: tuple[EvictedBlock, ...]
    """What these blocks held; copy before filling them."""


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One step: at most one chunk a sequence, decodes first. Every plan must be committed or
    discarded before the next, also one without chunks."""

    step: int
    """Counts plans from 1."""
    chunks: tuple[Chunk, ...]
    evicted: tuple[EvictedBlock, ...]
    """Content that this step overwrites."""
    preempted: tuple[SeqId, ...]
    """Sequences that lost their blocks to this step; they resume by themselves."""
    lookups: tuple[Lookup, ...]

    @property
    def num_tokens(self) -> int:
        """Tokens fed over all chunks."""
        return sum(chunk.count for chunk in self.chunks)


@dataclass(frozen=True, slots=True)
class Finished:
    """A sequence ended; reported exactly once, by the call that ended it."""

    seq_id: SeqId
    request_id: str
    reason: FinishReason


@dataclass(frozen=True, slots=True)
class BatcherStats:
    """Gauges of this moment, then counters since the start."""

    free_blocks: int
    used_blocks: int
    cached_blocks: int
    """Unreferenced but still holding content: available like the free ones."""
    waiting: int
    """Sequences not running, of any kind."""
    pending: int
    """Of these, waiting for the external tier."""
    running: int
    steps: int
    fed_tokens: int
    sampled_tokens: int
    preemptions: int
    evictions: int
    hit_tokens: int
    """Tokens not computed because a block was found in the pool, external loads included."""
    external_tokens: int
    """Tokens loaded from the external tier."""
    mismatches: int
    """Hits refused because the block's tokens were not the sequence's."""
