"""The step planner: which sequences are fed how many tokens in the next engine step.

There is no prefill and no decode phase. A step is a map sequence -> number of tokens, under a
budget of tokens: sequences that lack one token come first, so a long prompt never stalls them;
the rest of the budget goes to those that lack more, then to newcomers. (The idea is vLLM V1's
unified scheduler; chunked prefill is Sarathi-Serve's.) Rank is (priority, arrival), lower first;
when blocks run out, the worst-ranked sequence loses its own and later recomputes.

Calls come from one thread: plan, run the step, commit; the others between any two of them.
"""

from bisect import bisect_left, insort
from collections.abc import Collection, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field

from libs.hashing import BLOCK_TOKENS
from services.modelserver.herd.core.claims import Claims
from services.modelserver.herd.core.config import BatcherConfig
from services.modelserver.herd.core.errors import (
    DuplicateSequence,
    NeverFits,
    ProtocolError,
    UnknownSequence,
)
from services.modelserver.herd.core.external import ExternalLoads
from services.modelserver.herd.core.integrity import Places, check_blocks, check_places
from services.modelserver.herd.core.kv_blocks import KvBlocks
from services.modelserver.herd.core.plan import (
    BatcherStats,
    BlockId,
    Chunk,
    EvictedBlock,
    Finished,
    FinishReason,
    Lookup,
    Reservation,
    SeqId,
    StepPlan,
)
from services.modelserver.herd.core.sequence import External, Sequence, Status, rank
from services.modelserver.herd.core.waiting import WaitingQueue

__all__ = ["Batcher", "BatcherConfig"]


@dataclass(slots=True)
class _Draft:
    """A plan being made."""

    budget: int
    chunks: dict[SeqId, Chunk] = field(default_factory=dict)
    evicted: list[EvictedBlock] = field(default_factory=list)
    preempted: list[SeqId] = field(default_factory=list)
    lookups: list[Lookup] = field(default_factory=list)

    def is_empty(self) -> bool:
        return not (self.chunks or self.preempted or self.lookups)


@dataclass(slots=True)
class _Counters:
    steps: int = 0
    fed_tokens: int = 0
    sampled_tokens: int = 0
    preemptions: int = 0
    hit_tokens: int = 0
    external_tokens: int = 0


class Batcher:
    """Owns every sequence from `add` to its end, and the KV pool's books."""

    def __init__(self, config: BatcherConfig) -> None:
        self.config = config
        self._kv = KvBlocks(config.num_blocks)
        self._loads = ExternalLoads(self._kv)
        self._claims = Claims()
        self._sequences: dict[SeqId, Sequence] = {}
        self._waiting = WaitingQueue()
        self._running: list[Sequence] = []  # in rank order
        self._arrivals = 0
        self._in_step: StepPlan | None = None
        self._in_step_ids: frozenset[SeqId] = frozenset()
        self._chunk_limit = config.chunk_limit
        self._watermark = config.watermark
        self._count = _Counters()

    # ---- sequences come and go

    def add(self, seq: Sequence) -> None:
        """Queue a new sequence. NeverFits if the empty pool could not hold it; DuplicateSequence
        if its id is in use (an aborted one's id is, until its blocks are free)."""
        if seq.seq_id in self._sequences:
            raise DuplicateSequence(seq.seq_id)
        if seq.max_blocks > self.config.num_blocks:
            raise NeverFits.of(seq.max_blocks, self.config.num_blocks)
        self._arrivals += 1
        seq.arrival = self._arrivals
        self._sequences[seq.seq_id] = seq
        self._waiting.push(seq)

    def abort(self, request_id: str) -> list[Finished]:
        """End every live sequence of the request; none is no error.

        Blocks are free on return, or when the step or load that uses them ends.
        """
        live = [s for s in self._sequences.values() if s.request_id == request_id]
        return [self._end(s, FinishReason.ABORT) for s in live if s.status is not Status.FINISHED]

    def finish(self, seq_id: SeqId, reason: FinishReason) -> Finished:
        """End one live sequence for a reason of the shell's; blocks as with `abort`."""
        seq = self._sequences.get(seq_id)
        if seq is None or seq.status is Status.FINISHED:
            raise UnknownSequence(seq_id)
        return self._end(seq, reason)

    # ---- the step

    def plan(self, only: Collection[str] | None = None) -> StepPlan | None:
        """The next step; None if nothing can be done until a sequence or an external answer
        comes. The plan must be committed or discarded before the next one.

        With `only`, running sequences of these requests are fed and nothing else is: nobody is
        admitted, and None means that none of them can go on now.
        """
        if self._in_step is not None:
            raise ProtocolError(f"step {self._in_step.step} is not committed")
        draft = _Draft(self.config.max_batch_tokens)
        self._feed_running(draft, only)
        if only is None and not draft.preempted:
            self._admit(draft)
        if draft.is_empty():
            return None
        self._count.steps += 1
        self._in_step = StepPlan(
            self._count.steps,
            tuple(draft.chunks.values()),
            tuple(draft.evicted),
            tuple(draft.preempted),
            tuple(draft.lookups),
        )
        self._in_step_ids = frozenset(draft.chunks)
        return self._in_step

    def commit(
        self,
        plan: StepPlan,
        sampled: Mapping[SeqId, Seq[int]],
        finished: Mapping[SeqId, FinishReason] | None = None,
    ) -> list[Finished]:
        """Record that the step ran; the sequences that ended with it.

        `sampled` has one or more tokens for each chunk with `sample` whose sequence is still
        live; tokens after the one that ends a sequence are dropped. `finished` ends sequences
        for the shell's reasons (a stop string), which win over the batcher's own.
        """
        self._check_commit(plan, sampled)
        self._leave_step()
        ended = []
        for chunk in plan.chunks:
            seq = self._sequences[chunk.seq_id]
            self._advance(seq, chunk.count)
            if seq.status is Status.FINISHED:
                self._forget(seq)
                continue
            reason = self._append(seq, sampled[chunk.seq_id]) if chunk.sample else None
            if finished is not None:
                reason = finished.get(chunk.seq_id, reason)
            if reason is not None:
                ended.append(self._end(seq, reason))
        return ended

    def discard(self, plan: StepPlan) -> None:
        """The step did not run (its KV is not computed): the same work is planned again."""
        if plan is not self._in_step:
            raise ProtocolError("not the plan in flight")
        self._leave_step()
        for chunk in plan.chunks:
            seq = self._sequences[chunk.seq_id]
            if seq.status is Status.FINISHED:
                self._forget(seq)

    # ---- the external tier

    def external_found(self, seq_id: SeqId, n_blocks: int) -> Reservation:
        """The tier holds the lookup's first `n_blocks` keys: the blocks to fill with them."""
        room = self._kv.pool.num_available - (self._watermark if self._running else 0)
        if self._load_of(seq_id).status is Status.FINISHED:
            room = 0
        reservation = self._loads.reserve(seq_id, max(0, min(n_blocks, room)))
        if not reservation.blocks:
            self._end_load(seq_id)
        return reservation

    def external_loaded(self, seq_id: SeqId, tokens: Seq[Seq[int]]) -> int:
        """The first `len(tokens)` reserved blocks are filled; `tokens` are the token ids that the
        tier stored with each. How many were accepted: up to the first that differs."""
        accepted = self._loads.fill(seq_id, tokens)
        self._count.external_tokens += sum(len(stored) for stored in tokens[:accepted])
        self._end_load(seq_id)
        return accepted

    def external_failed(self, seq_id: SeqId) -> None:
        """The lookup or the load failed, nothing writes to its blocks any more: recompute."""
        self._load_of(seq_id)
        self._end_load(seq_id)

    # ---- what can be seen

    def stats(self) -> BatcherStats:
        pool, count = self._kv.pool, self._count
        return BatcherStats(
            free_blocks=pool.num_free,
            used_blocks=pool.num_used,
            cached_blocks=pool.num_cached,
            waiting=len(self._waiting),
            pending=len(self._loads),
            running=len(self._running),
            steps=count.steps,
            fed_tokens=count.fed_tokens,
            sampled_tokens=count.sampled_tokens,
            preemptions=count.preemptions,
            evictions=self._kv.evictions,
            hit_tokens=count.hit_tokens,
            external_tokens=count.external_tokens,
            mismatches=self._kv.cache.mismatches + self._loads.mismatches,
        )

    def check_integrity(self) -> None:
        """IntegrityError if any of the books contradict each other. Linear in everything."""
        places = Places(
            self._sequences, list(self._waiting), self._running, self._loads, self._in_step_ids
        )
        check_places(places)
        check_blocks(places, self._kv)
        self._claims.check_integrity(places.producers())

    # ---- planning

    def _feed_running(self, draft: _Draft, only: Collection[str] | None) -> None:
        decodes: list[Sequence] = []
        prefills: list[Sequence] = []
        for seq in self._running:
            if only is not None and seq.request_id not in only:
                continue
            (decodes if seq.num_uncomputed == 1 else prefills).append(seq)
        for seq in (*decodes, *prefills):
            if seq.status is Status.RUNNING:  # not preempted by one before it
                self._feed(seq, draft)

    def _feed(self, seq: Sequence, draft: _Draft) -> None:
        """Plan the sequence's next chunk, preempting worse-ranked ones if it has no block.

        Without anything to preempt it stands still: those planned before it hold the memory,
        and the step is theirs. If nothing is planned either, it preempts itself and lets the
        queue's order decide who goes on.
        """
        count = min(seq.num_uncomputed, draft.budget, self._chunk_limit)
        if not count:
            return
        start = seq.num_computed
        self._kv.grow(seq, start + count, draft.evicted)
        while seq.capacity() == start:
            victim = self._worst_unplanned(draft)
            if victim is seq and draft.chunks:
                return
            self._preempt(victim, draft)
            if victim is seq:
                return
            self._kv.grow(seq, start + count, draft.evicted)
        count = min(count, seq.capacity() - start)
        draft.budget -= count
        end = start + count
        draft.chunks[seq.seq_id] = Chunk(
            seq.seq_id,
            start,
            count,
            seq.block_table,
            tuple(seq.tokens[start:end]),
            end == len(seq.tokens),
        )

    def _worst_unplanned(self, draft: _Draft) -> Sequence:
        return next(s for s in reversed(self._running) if s.seq_id not in draft.chunks)

    def _preempt(self, seq: Sequence, draft: _Draft) -> None:
        self._running.remove(seq)
        self._release(seq)
        seq.status = Status.PREEMPTED
        seq.external = External.NOT_ASKED
        seq.num_preemptions += 1
        self._count.preemptions += 1
        self._waiting.push(seq)
        draft.preempted.append(seq.seq_id)

    def _admit(self, draft: _Draft) -> None:
        """Let waiting sequences in, in turn. One without room stops the rest (or it would starve);
        one that waits for another's block or for the external tier is stepped over, in O(1)."""
        for seq in list(self._waiting):
            if not draft.budget or len(self._running) >= self.config.max_seqs:
                return
            if seq.external is External.PENDING or self._must_wait(seq):
                continue
            hit = self._kv.cache.match(seq)
            if not self._has_room(seq, hit, draft):
                return
            if not self._should_look_up(seq, hit):
                self._start(seq, hit, draft)
            elif len(self._running) + len(self._loads) < self.config.max_seqs:
                self._look_up(seq, hit, draft)
            else:
                return  # as many prefixes are held as could run

    def _must_wait(self, seq: Sequence) -> bool:
        """Whether another sequence is computing or loading what this one would.

        Blocks in the cache or claimed are a prefix of its blocks, so their end is found by
        bisection; if the last of them is claimed, it waits for that one to land. (An abort can
        leave a gap in the claims: then it waits for less or for more, never for nothing.)
        """
        if seq.waits_on is None or not self._claims.is_claimed(seq.waits_on):
            seq.waits_on = self._last_shared(seq)
        return seq.waits_on is not None

    def _last_shared(self, seq: Sequence) -> bytes | None:
        def is_new(index: int) -> bool:
            key = seq.keys[index]
            return not (self._claims.is_claimed(key) or self._kv.cache.has_key(key))

        end = bisect_left(range(seq.max_hit_blocks), True, key=is_new)
        if end and self._claims.is_claimed(seq.keys[end - 1]):
            return seq.keys[end - 1]
        return None

    def _has_room(self, seq: Sequence, hit: Seq[BlockId], draft: _Draft) -> bool:
        cached = len(hit) * BLOCK_TOKENS
        count = min(len(seq.tokens) - cached, draft.budget, self._chunk_limit)
        spare = self._kv.spare_after(hit, cached + count)
        return spare >= (self._watermark if self._running else 0)

    def _should_look_up(self, seq: Sequence, hit: Seq[BlockId]) -> bool:
        return (
            self.config.external_tier
            and seq.external is External.NOT_ASKED
            and len(hit) < seq.max_hit_blocks
        )

    def _look_up(self, seq: Sequence, hit: Seq[BlockId], draft: _Draft) -> None:
        seq.external = External.PENDING
        self._claims.claim(seq, len(hit))
        draft.lookups.append(self._loads.start(seq, hit))

    def _start(self, seq: Sequence, hit: Seq[BlockId], draft: _Draft) -> None:
        self._waiting.remove(seq)
        self._kv.hold(hit)
        seq.take_hit(hit)
        seq.status = Status.RUNNING
        self._claims.claim(seq, len(hit))
        insort(self._running, seq, key=rank)
        self._count.hit_tokens += seq.num_computed
        self._feed(seq, draft)

    # ---- after the step

    def _check_commit(self, plan: StepPlan, sampled: Mapping[SeqId, Seq[int]]) -> None:
        if plan is not self._in_step:
            raise ProtocolError("not the plan in flight")
        for chunk in plan.chunks:
            live = self._sequences[chunk.seq_id].status is not Status.FINISHED
            if chunk.sample and live and not sampled.get(chunk.seq_id):
                raise ProtocolError(f"no token sampled for {chunk.seq_id}")

    def _leave_step(self) -> None:
        self._in_step = None
        self._in_step_ids = frozenset()

    def _advance(self, seq: Sequence, count: int) -> None:
        seq.num_computed += count
        self._count.fed_tokens += count
        for key in self._kv.name_computed(seq):
            self._claims.landed(seq, key)

    def _append(self, seq: Sequence, tokens: Seq[int]) -> FinishReason | None:
        for token in tokens:
            self._count.sampled_tokens += 1
            reason = seq.append(token)
            if reason is not None:
                return reason
        return None

    def _end(self, seq: Sequence, reason: FinishReason) -> Finished:
        if seq.status is Status.RUNNING:
            self._running.remove(seq)
        else:
            self._waiting.remove(seq)
        seq.status = Status.FINISHED
        seq.finish_reason = reason
        if seq.seq_id not in self._in_step_ids and seq.seq_id not in self._loads:
            self._forget(seq)
        return Finished(seq.seq_id, seq.request_id, reason)

    def _forget(self, seq: Sequence) -> None:
        self._release(seq)
        del self._sequences[seq.seq_id]

    def _release(self, seq: Sequence) -> None:
        self._claims.drop(seq)
        self._kv.release(seq.drop_blocks())

    def _load_of(self, seq_id: SeqId) -> Sequence:
        if seq_id not in self._loads:
            raise ProtocolError(f"{seq_id} has no lookup or load in progress")
        return self._sequences[seq_id]

    def _end_load(self, seq_id: SeqId) -> None:
        seq = self._loads.end(seq_id)
        seq.external = External.DONE
        self._claims.drop(seq)
        if seq.status is Status.FINISHED:
            self._forget(seq)
