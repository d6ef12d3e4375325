"""A shell around a batcher whose model reads everything through the block tables.

Each KV slot holds a digest of its token and of **every slot before it, as read from the blocks at
that moment**; the next token is a function of all of them. A stale, wrong, unwritten or
too early overwritten block therefore changes the tokens that come out, which `expected_output`
(the same model over a plain list) does not forgive.
"""

import zlib
from collections.abc import Collection, Iterable

from libs.hashing import BLOCK_TOKENS
from services.modelserver.herd.core.batcher import Batcher
from services.modelserver.herd.core.plan import (
    Chunk,
    EvictedBlock,
    Finished,
    FinishReason,
    Lookup,
    StepPlan,
)
from services.modelserver.herd.core.sequence import Limits, Sequence

VOCABULARY = 50
_UNWRITTEN = 0xDEAD


def fold(state: int, value: int) -> int:
    """One step of the model's digest."""
    return zlib.crc32(value.to_bytes(8, "little"), state)


def expected_output(prompt: list[int], limits: Limits) -> list[int]:
    """What the model says alone, with KV that nobody else can touch."""
    state = 0
    for token in prompt:
        state = fold(state, fold(state, token))
    output: list[int] = []
    while True:
        token = state % VOCABULARY
        output.append(token)
        enough = len(output) >= limits.min_tokens
        eos = token in limits.eos_token_ids and not limits.ignore_eos
        if enough and (eos or token in limits.stop_token_ids):
            return output
        if len(output) == limits.max_tokens:
            return output
        state = fold(state, fold(state, token))


class SimEngine:
    """Runs a batcher's plans on simulated KV, with a lower tier that keeps what was evicted."""

    def __init__(self, batcher: Batcher) -> None:
        self.batcher = batcher
        self.sequences: dict[str, Sequence] = {}
        self.ends: list[Finished] = []
        self.in_flight: StepPlan | None = None
        self.lookups: dict[str, Lookup] = {}
        self.filling: dict[str, tuple[int, ...]] = {}
        self.tier: dict[bytes, tuple[tuple[int, ...], list[int]]] = {}
        self._kv = [[_UNWRITTEN] * BLOCK_TOKENS for _ in range(batcher.config.num_blocks)]

    def add(self, seq: Sequence) -> None:
        self.batcher.add(seq)
        self.sequences[seq.seq_id] = seq

    # ---- steps

    def plan(self, only: Collection[str] | None = None) -> StepPlan | None:
        plan = self.batcher.plan(only)
        self.in_flight = plan
        if plan is not None:
            self._save(plan.evicted)
            self.lookups |= {lookup.seq_id: lookup for lookup in plan.lookups}
        return plan

    def commit(self) -> list[Finished]:
        """Run the planned step and commit it."""
        plan = self.in_flight
        assert plan is not None
        self.in_flight = None
        sampled = {}
        for chunk in plan.chunks:
            token = self._run(chunk)
            if chunk.sample:
                sampled[chunk.seq_id] = [token]
        return self._ended(self.batcher.commit(plan, sampled))

    def spoil(self) -> None:
        """The planned step raised when it had written wrong KV for all that it was fed."""
        plan = self.in_flight
        assert plan is not None
        self.in_flight = None
        for chunk in plan.chunks:
            for position in range(chunk.start, chunk.start + chunk.count):
                block = chunk.block_table[position // BLOCK_TOKENS]
                self._kv[block][position % BLOCK_TOKENS] = _UNWRITTEN
        self.batcher.discard(plan)

    def step(self) -> StepPlan | None:
        plan = self.plan()
        if plan is not None:
            self.commit()
        return plan

    def abort(self, request_id: str) -> list[Finished]:
        return self._ended(self.batcher.abort(request_id))

    def finish(self, seq_id: str, reason: FinishReason) -> None:
        self._ended([self.batcher.finish(seq_id, reason)])

    # ---- the lower tier

    def held_by_tier(self, seq_id: str) -> int:
        """Leading keys of the lookup that the tier has."""
        keys = self.lookups[seq_id].keys
        return next((n for n, key in enumerate(keys) if key not in self.tier), len(keys))

    def found(self, seq_id: str, n_blocks: int) -> int:
        """Answer a lookup; how many blocks are now being filled."""
        reservation = self.batcher.external_found(seq_id, n_blocks)
        self._save(reservation.evicted)
        if reservation.blocks:
            self.filling[seq_id] = reservation.blocks
        else:
            del self.lookups[seq_id]
        return len(reservation.blocks)

    def loaded(self, seq_id: str, n_ok: int, *, wrong_from: int | None = None) -> int:
        """Fill the first `n_ok` reserved blocks; from `wrong_from` on with another block's bytes
        and tokens. How many the batcher accepted."""
        lookup = self.lookups.pop(seq_id)
        blocks = self.filling.pop(seq_id)
        tokens = []
        for at in range(n_ok):
            ids, slots = self.tier[lookup.keys[at]]
            if wrong_from is not None and at >= wrong_from:
                ids, slots = tuple(t + 1 for t in ids), [_UNWRITTEN] * BLOCK_TOKENS
            self._kv[blocks[at]] = list(slots)
            tokens.append(ids)
        return self.batcher.external_loaded(seq_id, tokens)

    def failed(self, seq_id: str) -> None:
        self.lookups.pop(seq_id)
        for block in self.filling.pop(seq_id, ()):
            self._kv[block] = [_UNWRITTEN] * BLOCK_TOKENS
        self.batcher.external_failed(seq_id)

    # ---- the model

    def _run(self, chunk: Chunk) -> int:
        state = 0
        for position in range(chunk.start):
            state = fold(state, self._slot(chunk, position))
        for position, token in enumerate(chunk.tokens, chunk.start):
            value = fold(state, token)
            block = chunk.block_table[position // BLOCK_TOKENS]
            self._kv[block][position % BLOCK_TOKENS] = value
            state = fold(state, value)
        return state % VOCABULARY

    def _slot(self, chunk: Chunk, position: int) -> int:
        block = chunk.block_table[position // BLOCK_TOKENS]
        return self._kv[block][position % BLOCK_TOKENS]

    def _save(self, evicted: Iterable[EvictedBlock]) -> None:
        for lost in evicted:
            self.tier[lost.key] = (lost.tokens, list(self._kv[lost.block]))

    def _ended(self, ends: list[Finished]) -> list[Finished]:
        self.ends += ends
        return ends
