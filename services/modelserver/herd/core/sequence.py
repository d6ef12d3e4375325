"""One token stream: its tokens, how far its KV is computed, and its blocks.

The batcher is the only writer once the sequence is added; the shell reads it between steps.
"""

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from enum import Enum, auto

from libs.hashing import BLOCK_TOKENS, ContentChain, kv_keys
from services.modelserver.herd.core.plan import BlockId, FinishReason, SeqId


class Status(Enum):
    """Where a sequence is. PREEMPTED is WAITING that already ran."""

    WAITING = auto()
    RUNNING = auto()
    PREEMPTED = auto()
    FINISHED = auto()


class External(Enum):
    """Whether the external tier was asked for this admission."""

    NOT_ASKED = auto()
    PENDING = auto()
    DONE = auto()


@dataclass(frozen=True, slots=True)
class Limits:
    """When a sequence ends by its tokens. Stop strings are the shell's."""

    max_tokens: int
    """Output tokens at most, >= 1."""
    min_tokens: int = 0
    """No stop token ends the sequence before this many output tokens (itself included)."""
    eos_token_ids: frozenset[int] = frozenset()
    stop_token_ids: frozenset[int] = frozenset()
    ignore_eos: bool = False
    """eos_token_ids do not end the sequence; stop_token_ids still do."""

    def __post_init__(self) -> None:
        if self.max_tokens < 1:
            raise ValueError("max_tokens must be at least 1")
        if not 0 <= self.min_tokens <= self.max_tokens:
            raise ValueError("min_tokens must lie in [0, max_tokens]")


class Sequence:
    """A request's prompt and one output. `n` outputs are `n` sequences with one request id:
    they share the prompt's blocks through the prefix cache.

    `salt` and `namespace` (digests from libs/hashing) root the names of its blocks.
    """

    def __init__(
        self,
        seq_id: SeqId,
        request_id: str,
        prompt: Seq[int],
        limits: Limits,
        *,
        salt: bytes,
        namespace: bytes,
        priority: int = 0,
    ) -> None:
        if not prompt:
            raise ValueError("an empty prompt has nothing to sample from")
        self.seq_id = seq_id
        self.request_id = request_id
        self.limits = limits
        self.priority = priority
        """Lower goes first."""
        self.tokens: list[int] = list(prompt)
        """Prompt and output."""
        self.num_prompt = len(self.tokens)
        self.arrival = 0
        """Set by the batcher: the order of `add`."""
        self.status = Status.WAITING
        self.external = External.NOT_ASKED
        self.finish_reason: FinishReason | None = None
        self.num_computed = 0
        """Leading tokens whose KV is in the blocks."""
        self.num_registered = 0
        """Leading blocks of the table that are in the prefix cache under this sequence's keys."""
        self.num_cached_tokens: int | None = None
        """Tokens found in the cache when first admitted (for usage); None until then."""
        self.num_preemptions = 0
        self.waits_on: bytes | None = None
        """KV key that another sequence is computing or loading; this one is held back for it."""
        self._namespace = namespace
        self._chain = ContentChain(salt)
        self._content: list[bytes] = []
        self._keys: list[bytes] = []
        self._blocks_of_tokens: list[tuple[int, ...]] = []
        self._table: list[BlockId] = []
        self._table_tuple: tuple[BlockId, ...] | None = ()
        self._name_full_blocks()

    @property
    def output(self) -> list[int]:
        """Output tokens so far (a copy)."""
        return self.tokens[self.num_prompt :]

    @property
    def num_output(self) -> int:
        return len(self.tokens) - self.num_prompt

    @property
    def num_uncomputed(self) -> int:
        return len(self.tokens) - self.num_computed

    @property
    def max_blocks(self) -> int:
        """Blocks it can ever need; the last output token's KV is never computed."""
        return blocks_for(self.num_prompt + self.limits.max_tokens - 1)

    @property
    def max_hit_blocks(self) -> int:
        """Blocks it may take from a cache: all full ones that leave its last token to compute."""
        return (len(self.tokens) - 1) // BLOCK_TOKENS

    @property
    def block_table(self) -> tuple[BlockId, ...]:
        """The table, shared until it changes: no copy per step."""
        if self._table_tuple is None:
            self._table_tuple = tuple(self._table)
        return self._table_tuple

    @property
    def keys(self) -> Seq[bytes]:
        """KV keys of its full blocks of known tokens."""
        return self._keys

    @property
    def content_hashes(self) -> Seq[bytes]:
        """Content hashes of its full blocks of known tokens."""
        return self._content

    @property
    def block_tokens(self) -> Seq[tuple[int, ...]]:
        """Token ids of its full blocks of known tokens."""
        return self._blocks_of_tokens

    def capacity(self) -> int:
        """Positions that its blocks can hold."""
        return len(self._table) * BLOCK_TOKENS

    def add_block(self, block: BlockId) -> None:
        """Append a block to the table."""
        self._table.append(block)
        self._table_tuple = None

    def replace_block(self, index: int, block: BlockId) -> BlockId:
        """Put another block with the same content in the table; the block it replaces."""
        old = self._table[index]
        self._table[index] = block
        self._table_tuple = None
        return old

    def drop_blocks(self) -> tuple[BlockId, ...]:
        """Forget all KV; the blocks it held, prefix first, are the caller's to release."""
        blocks = self.block_table
        self._table = []
        self._table_tuple = ()
        self.num_computed = 0
        self.num_registered = 0
        return blocks

    def take_hit(self, blocks: Seq[BlockId]) -> None:
        """Start from the blocks of a cached prefix, already held for it."""
        self._table = list(blocks)
        self._table_tuple = None
        self.num_computed = len(blocks) * BLOCK_TOKENS
        self.num_registered = len(blocks)
        if self.num_cached_tokens is None:
            self.num_cached_tokens = self.num_computed

    def append(self, token: int) -> FinishReason | None:
        """Add an output token; why the sequence ends with it, if it does."""
        self.tokens.append(token)
        if len(self.tokens) % BLOCK_TOKENS == 0:
            self._name_full_blocks()
        return self._end_by_tokens(token)

    def _end_by_tokens(self, token: int) -> FinishReason | None:
        limits = self.limits
        stops = token in limits.stop_token_ids or (
            token in limits.eos_token_ids and not limits.ignore_eos
        )
        if stops and self.num_output >= limits.min_tokens:
            return FinishReason.STOP
        if self.num_output >= limits.max_tokens:
            return FinishReason.LENGTH
        return None

    def _name_full_blocks(self) -> None:
        done = len(self._keys) * BLOCK_TOKENS
        full = len(self.tokens) - len(self.tokens) % BLOCK_TOKENS
        new = self.tokens[done:full]
        hashes = self._chain.extend(new)
        self._content += hashes
        self._keys += kv_keys(self._namespace, hashes)
        starts = range(0, len(new), BLOCK_TOKENS)
        self._blocks_of_tokens += [tuple(new[at : at + BLOCK_TOKENS]) for at in starts]


def blocks_for(num_tokens: int) -> int:
    """Blocks that hold `num_tokens` positions."""
    return -(-num_tokens // BLOCK_TOKENS)


def rank(seq: Sequence) -> tuple[int, int]:
    """Order of importance, the smaller the more: priority, then arrival."""
    return seq.priority, seq.arrival
