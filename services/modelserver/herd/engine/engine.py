"""The engine's synchronous heart: plan a step, run it, commit it, say what happened.

Not thread-safe and never blocking but for the model itself: `EngineThread` owns one. The batcher
decides; this class moves values between it, the runner and the KV pool, and remembers per step
what a client is to be told.
"""

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Protocol

from libs.hashing import BLOCK_TOKENS
from services.modelserver.herd.core.batcher import Batcher
from services.modelserver.herd.core.plan import (
    Chunk,
    EvictedBlock,
    FinishReason,
    SeqId,
    StepPlan,
)
from services.modelserver.herd.core.sequence import Sequence
from services.modelserver.herd.core.suspects import Suspects
from services.modelserver.herd.engine.sampled import RowSampling, Sampled
from services.modelserver.herd.engine.shares import split_time
from services.modelserver.herd.engine.step import (
    Admitted,
    ChoiceUpdate,
    FetchedBlock,
    StepEnded,
    StepOutcome,
    StepSpec,
    StoredBlock,
)

log = logging.getLogger(__name__)


class StepInterrupted(Exception):
    """Raised out of the runner by a checkpoint: the step's work is thrown away and planned anew."""


class StepRunner(Protocol):
    """Runs the model over a step's chunks and samples one token for each chunk that asks."""

    def step(
        self,
        chunks: tuple[Chunk, ...],
        sampling: list[RowSampling],
        checkpoint: Callable[[], None],
    ) -> Sampled:
        """`sampling` has an entry for each chunk with `sample`, in order; so has the result.
        What `checkpoint` raises passes through: nothing was sampled then. Any other Exception is
        held to be the fault of some step in it: the work is done again in smaller company."""
        ...


class BlockStore(Protocol):
    """The part of the KV pool that moves whole blocks."""

    def read_block(self, block: int) -> memoryview: ...

    def write_block(self, block: int, payload: bytes | bytearray | memoryview) -> None: ...


@dataclass(slots=True)
class _Choice:
    index: int
    seq: Sequence
    spec: StepSpec


@dataclass(slots=True)
class _Live:
    """A step in the engine; it leaves when its last choice has ended."""

    spec: StepSpec
    running: dict[SeqId, _Choice]
    first: Sequence
    admitted: bool = False
    engine_s: float = 0.0
    preemptions: int = 0
    prompt_done: int = 0
    """How far into the prompt any of its choices was ever fed."""
    faulty: bool = False


@dataclass(slots=True)
class _Notes:
    """What is to be told at the next hand-off."""

    admitted: list[Admitted] = field(default_factory=list)
    updates: list[ChoiceUpdate] = field(default_factory=list)
    ended: list[StepEnded] = field(default_factory=list)
    stores: list[StoredBlock] = field(default_factory=list)


class Engine:
    """One writer: the engine thread."""

    def __init__(
        self,
        batcher: Batcher,
        runner: StepRunner,
        blocks: BlockStore,
        namespace: bytes,
        *,
        now: Callable[[], float],
        store_evicted: bool,
    ) -> None:
        self.batcher = batcher
        self._runner = runner
        self._blocks = blocks
        self._namespace = namespace
        self._now = now
        self._store_evicted = store_evicted
        self._live: dict[str, _Live] = {}
        self._choices: dict[SeqId, _Choice] = {}
        self._notes = _Notes()
        self._running_plan: StepPlan | None = None
        self._suspects = Suspects()

    # ---- between steps

    def add(self, spec: StepSpec) -> None:
        """Queue a step. Raises NeverFits or DuplicateSequence; then nothing of it is queued."""
        sequences = [self._sequence(spec, index) for index in range(spec.n)]
        added: list[Sequence] = []
        try:
            for seq in sequences:
                self.batcher.add(seq)
                added.append(seq)
        except Exception:
            for seq in added:
                self.batcher.finish(seq.seq_id, FinishReason.ABORT)
            raise
        running = {seq.seq_id: _Choice(at, seq, spec) for at, seq in enumerate(sequences)}
        self._choices |= running
        self._live[spec.step_id] = _Live(spec, running, sequences[0])

    def end_choice(self, step_id: str, choice: int, reason: FinishReason) -> bool:
        """End one choice for a reason of the caller's. False if it has ended already."""
        live = self._live.get(step_id)
        seq_id = _seq_id(step_id, choice)
        if live is None or seq_id not in live.running:
            return False
        self.batcher.finish(seq_id, reason)
        update = ChoiceUpdate(step_id, choice, (), (), reason, stopped_by_token=False)
        self._notes.updates.append(update)
        self._choice_ended(seq_id)
        return True

    def abort(self, step_id: str) -> bool:
        """End what is left of a step. False if it is not here."""
        live = self._live.get(step_id)
        if live is None:
            return False
        for choice in list(live.running.values()):
            self.end_choice(step_id, choice.index, FinishReason.ABORT)
        return True

    def fetched(self, seq_id: SeqId, found: list[FetchedBlock]) -> None:
        """Answer a lookup: put what a lower tier held into the pool; empty means nothing came."""
        if not found:
            self.batcher.external_failed(seq_id)
            return
        reservation = self.batcher.external_found(seq_id, len(found))
        if not reservation.blocks:
            return
        self._copy_out(reservation.evicted)
        usable = found[: len(reservation.blocks)]
        for block, fetched in zip(reservation.blocks, usable, strict=False):
            self._blocks.write_block(block, fetched.payload)
        self.batcher.external_loaded(seq_id, [fetched.tokens for fetched in usable])

    def is_in_step(self, step_id: str) -> bool:
        """Whether the step that is being run right now feeds this step's tokens."""
        live = self._live.get(step_id)
        if live is None or self._running_plan is None:
            return False
        return any(chunk.seq_id in live.running for chunk in self._running_plan.chunks)

    @property
    def has_work(self) -> bool:
        """Whether anything is queued or running (it may be waiting for a lower tier)."""
        return bool(self._live)

    # ---- one step

    def step(self, checkpoint: Callable[[], None]) -> StepOutcome | None:
        """Run one step. None when nothing can be done until a call between steps.

        `checkpoint` is called between layers and may raise StepInterrupted. Raises EngineBroken
        when no step runs any more, whichever is tried.
        """
        plan = self._plan()
        if plan is None:
            return self._outcome() if self._has_notes() else None
        self._copy_out(plan.evicted)
        for seq_id in plan.preempted:
            self._live[self._choices[seq_id].spec.step_id].preemptions += 1
        self._note_admissions(plan)
        started = self._now()
        sampled = self._run(plan, checkpoint)
        if sampled is None:
            return self._outcome(plan, busy_s=self._now() - started)
        busy_s = self._now() - started
        self._book(plan, busy_s)
        self._commit(plan, sampled)
        self._end_faulty(self._suspects.ran())
        return self._outcome(plan, busy_s, len(sampled.tokens), plan.num_tokens)

    def _plan(self) -> StepPlan | None:
        """While it is not known who raised, only those whose turn it is are fed: the others stand
        still for these few engine steps."""
        while (turn := self._suspects.turn) is not None:
            plan = self.batcher.plan(only=turn)
            if plan is not None:
                return plan
            self._end_faulty(self._suspects.idle())
        return self.batcher.plan()

    def _run(self, plan: StepPlan, checkpoint: Callable[[], None]) -> Sampled | None:
        if not plan.chunks:
            self.batcher.commit(plan, {})
            return None
        sampling = self._sampling(plan.chunks)
        self._running_plan = plan
        try:
            return self._runner.step(plan.chunks, sampling, checkpoint)
        except StepInterrupted:
            self.batcher.discard(plan)
            return None
        except Exception as error:  # noqa: BLE001  # a step's fault must end that step alone
            self.batcher.discard(plan)
            self._raised(plan, error)
            return None
        finally:
            self._running_plan = None

    def _raised(self, plan: StepPlan, error: Exception) -> None:
        """Nothing of the plan was kept: no block of it was named, no token of it was told."""
        steps = list(dict.fromkeys(self._choices[c.seq_id].spec.step_id for c in plan.chunks))
        if self._suspects.turn is None:
            fields: dict[str, object] = {"steps": len(steps)}
            log.warning("the model raised: looking for the step", exc_info=error, extra=fields)
        elif len(steps) == 1:
            fields = {"step": steps[0]}
            log.error("the model raised on this step alone", exc_info=error, extra=fields)
        self._end_faulty(self._suspects.raised(steps))

    def _end_faulty(self, guilty: Iterable[str]) -> None:
        for step_id in guilty:
            live = self._live[step_id]
            live.faulty = True
            for choice in list(live.running.values()):
                self.end_choice(step_id, choice.index, FinishReason.ERROR)

    def _sampling(self, chunks: Iterable[Chunk]) -> list[RowSampling]:
        rows = []
        for chunk in chunks:
            if chunk.sample:
                choice = self._choices[chunk.seq_id]
                params = choice.spec.sampling[choice.index]
                rows.append(RowSampling(params, choice.seq.tokens, choice.seq.num_prompt))
        return rows

    def _commit(self, plan: StepPlan, sampled: Sampled) -> None:
        rows = {c.seq_id: row for row, c in enumerate(c for c in plan.chunks if c.sample)}
        tokens = {seq_id: [sampled.tokens[row]] for seq_id, row in rows.items()}
        ended = {f.seq_id: f.reason for f in self.batcher.commit(plan, tokens)}
        for seq_id, row in rows.items():
            choice = self._choices[seq_id]
            token, logprobs = sampled.tokens[row], sampled.logprobs[row]
            reason = ended.get(seq_id)
            update = ChoiceUpdate(
                choice.spec.step_id,
                choice.index,
                (token,),
                () if logprobs is None else (logprobs,),
                reason,
                stopped_by_token=reason is FinishReason.STOP,
            )
            self._notes.updates.append(update)
            if reason is not None:
                self._choice_ended(seq_id)

    # ---- bookkeeping

    def _sequence(self, spec: StepSpec, choice: int) -> Sequence:
        return Sequence(
            _seq_id(spec.step_id, choice),
            spec.step_id,
            spec.prompt,
            spec.limits,
            salt=spec.salt,
            namespace=self._namespace,
            priority=spec.priority,
        )

    def _note_admissions(self, plan: StepPlan) -> None:
        for chunk in plan.chunks:
            choice = self._choices[chunk.seq_id]
            live = self._live[choice.spec.step_id]
            if not live.admitted:
                live.admitted = True
                cached = choice.seq.num_cached_tokens or 0
                self._notes.admitted.append(Admitted(choice.spec.step_id, cached, self._now()))

    def _choice_ended(self, seq_id: SeqId) -> None:
        choice = self._choices.pop(seq_id)
        live = self._live[choice.spec.step_id]
        del live.running[seq_id]
        if not live.running:
            del self._live[choice.spec.step_id]
            self._suspects.forget(choice.spec.step_id)
            self._notes.ended.append(_ended(live))

    def _book(self, plan: StepPlan, busy_s: float) -> None:
        """Every chunk's step is live here: nothing between plan and commit ends one."""
        for chunk, share in zip(plan.chunks, split_time(busy_s, plan.chunks), strict=True):
            live = self._live[self._choices[chunk.seq_id].spec.step_id]
            live.engine_s += share
            fed_to = min(chunk.start + chunk.count, live.first.num_prompt)
            live.prompt_done = max(live.prompt_done, fed_to)

    def _copy_out(self, evicted: Iterable[EvictedBlock]) -> None:
        if not self._store_evicted:
            return
        for block in evicted:
            payload = self._blocks.read_block(block.block)
            self._notes.stores.append(StoredBlock(block.key, block.parent, block.tokens, payload))

    def _has_notes(self) -> bool:
        notes = self._notes
        return bool(notes.admitted or notes.updates or notes.ended or notes.stores)

    def _outcome(
        self,
        plan: StepPlan | None = None,
        busy_s: float = 0.0,
        sampled_tokens: int = 0,
        fed_tokens: int = 0,
    ) -> StepOutcome:
        notes, self._notes = self._notes, _Notes()
        return StepOutcome(
            admitted=tuple(notes.admitted),
            updates=tuple(notes.updates),
            ended=tuple(notes.ended),
            stores=tuple(notes.stores),
            lookups=plan.lookups if plan is not None else (),
            busy_s=busy_s,
            fed_tokens=fed_tokens,
            sampled_tokens=sampled_tokens,
        )


def _ended(live: _Live) -> StepEnded:
    prompt_blocks = live.first.num_prompt // BLOCK_TOKENS
    hashes = tuple(live.first.content_hashes)
    cached_tokens = live.first.num_cached_tokens or 0
    return StepEnded(
        live.spec.step_id,
        engine_s=live.engine_s,
        preemptions=live.preemptions,
        prompt_tokens=max(live.prompt_done, cached_tokens),
        cached_tokens=cached_tokens,
        prompt_hashes=hashes[:prompt_blocks],
        output_hashes=hashes[prompt_blocks:],
        faulty=live.faulty,
    )


def _seq_id(step_id: str, choice: int) -> SeqId:
    return f"{step_id}#{choice}"
