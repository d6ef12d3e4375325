"""Whatever happens in whatever order: right tokens, one end each, no block lost, nobody stuck."""

from collections import Counter

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from services.modelserver.herd.core.plan import FinishReason
from services.modelserver.herd.core.sequence import Limits, Sequence, Status
from services.modelserver.tests.core.factories import make_batcher, make_sequence, stream
from services.modelserver.tests.core.sim_engine import SimEngine, expected_output

NUM_BASES = 2
LENGTHS = st.one_of(st.integers(1, 160), st.sampled_from([31, 32, 33, 63, 64, 65, 96, 128]))


class Traffic(RuleBasedStateMachine):
    """Small pools, shared prefixes, everything that may happen between plan and commit."""

    @initialize(
        num_blocks=st.integers(6, 14),
        budget=st.sampled_from([4, 16, 40, 64, 200]),
        max_seqs=st.integers(1, 4),
        prefill_chunk=st.sampled_from([None, 7, 32, 48]),
        watermark=st.integers(0, 2),
        external=st.booleans(),
    )
    def start(
        self,
        num_blocks: int,
        budget: int,
        max_seqs: int,
        prefill_chunk: int | None,
        watermark: int,
        external: bool,
    ) -> None:
        batcher = make_batcher(
            num_blocks,
            budget,
            max_seqs,
            prefill_chunk=prefill_chunk,
            watermark_blocks=watermark,
            external_tier=external,
        )
        self.engine = SimEngine(batcher)
        self.prompts: dict[str, list[int]] = {}
        self.cut_short: set[str] = set()

    @rule(
        base=st.integers(0, NUM_BASES - 1),
        shared=LENGTHS,
        own=st.integers(0, 40),
        max_tokens=st.integers(1, 40),
        priority=st.sampled_from([0, 0, 0, 1, -1]),
        copies=st.sampled_from([1, 1, 1, 3]),
        eos=st.booleans(),
    )
    def add(
        self,
        base: int,
        shared: int,
        own: int,
        max_tokens: int,
        priority: int,
        copies: int,
        eos: bool,
    ) -> None:
        limits = Limits(max_tokens, max_tokens // 4, frozenset({1, 2} if eos else ()))
        request = f"r{len(self.prompts)}"
        prompt = stream(f"base{base}", shared) + stream(request, own)
        if -(-(len(prompt) + max_tokens - 1) // 32) > self.engine.batcher.config.num_blocks:
            prompt = prompt[-100:]
        for copy in range(copies):
            seq = make_sequence(
                f"{request}/{copy}", prompt, request_id=request, priority=priority, limits=limits
            )
            self.prompts[seq.seq_id] = prompt
            self.engine.add(seq)

    @rule(steps=st.integers(1, 12))
    def run(self, steps: int) -> None:
        for _ in range(steps):
            if self.engine.in_flight is not None:
                self.engine.commit()
            self._plan()
            if self.engine.in_flight is not None:
                self.engine.commit()
            self.engine.batcher.check_integrity()

    @precondition(lambda self: self.engine.in_flight is None)
    @rule()
    def plan_only(self) -> None:
        self._plan()

    @precondition(lambda self: self.engine.in_flight is None)
    @rule(data=st.data())
    def plan_some(self, data: st.DataObject) -> None:
        requests = sorted({seq_id.rpartition("/")[0] for seq_id in self._live()})
        only = set(data.draw(st.lists(st.sampled_from(requests)))) if requests else set()
        could_run = {s.seq_id for s in self._sequences() if s.status is Status.RUNNING}
        plan = self.engine.plan(only)
        fed = {chunk.seq_id for chunk in plan.chunks} if plan is not None else set()
        assert fed <= could_run
        assert {seq_id.rpartition("/")[0] for seq_id in fed} <= only
        assert plan is None or not plan.lookups

    @precondition(lambda self: self.engine.in_flight is not None)
    @rule()
    def spoil(self) -> None:
        self.engine.spoil()

    @precondition(lambda self: self.engine.in_flight is not None)
    @rule()
    def discard(self) -> None:
        plan = self.engine.in_flight
        assert plan is not None
        self.engine.in_flight = None
        self.engine.batcher.discard(plan)

    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        live = self._live()
        if live:
            request = data.draw(st.sampled_from(live)).rpartition("/")[0]
            ended = self.engine.abort(request)
            self.cut_short |= {end.seq_id for end in ended}

    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        live = self._live()
        if live:
            seq_id = data.draw(st.sampled_from(live))
            self.engine.finish(seq_id, FinishReason.STOP)
            self.cut_short.add(seq_id)

    @rule(data=st.data(), extra=st.sampled_from([0, 0, 1, 100]))
    def answer_lookup(self, data: st.DataObject, extra: int) -> None:
        asked = sorted(set(self.engine.lookups) - set(self.engine.filling))
        if asked:
            seq_id = data.draw(st.sampled_from(asked))
            held = self.engine.held_by_tier(seq_id)
            n_blocks = data.draw(st.integers(0, held))
            # A tier may claim more than it can deliver.
            self.engine.found(seq_id, n_blocks + extra)

    @rule(data=st.data(), wrong=st.booleans())
    def end_load(self, data: st.DataObject, wrong: bool) -> None:
        if self.engine.filling:
            seq_id = data.draw(st.sampled_from(sorted(self.engine.filling)))
            most = min(self.engine.held_by_tier(seq_id), len(self.engine.filling[seq_id]))
            n_ok = data.draw(st.integers(0, most))
            if wrong and n_ok:
                assert self.engine.loaded(seq_id, n_ok, wrong_from=n_ok - 1) == n_ok - 1
            else:
                self.engine.loaded(seq_id, n_ok)

    @rule(data=st.data())
    def external_fails(self, data: st.DataObject) -> None:
        if self.engine.lookups:
            self.engine.failed(data.draw(st.sampled_from(sorted(self.engine.lookups))))

    @invariant()
    def books_agree(self) -> None:
        if hasattr(self, "engine"):
            self.engine.batcher.check_integrity()

    @invariant()
    def tokens_are_the_models(self) -> None:
        for seq_id, seq in self.engine.sequences.items() if hasattr(self, "engine") else ():
            wanted = expected_output(self.prompts[seq_id], seq.limits)
            assert seq.output == wanted[: seq.num_output], seq_id

    def teardown(self) -> None:
        if not hasattr(self, "engine"):
            return
        if self.engine.in_flight is not None:
            self.engine.commit()
        self._drain()
        self._check_ends()
        stats = self.engine.batcher.stats()
        assert (stats.used_blocks, stats.waiting, stats.running, stats.pending) == (0, 0, 0, 0)
        assert stats.free_blocks + stats.cached_blocks == self.engine.batcher.config.num_blocks

    def _drain(self) -> None:
        """Every step is bounded work: a run that needs more of them than this is a livelock."""
        tokens = sum(len(seq.tokens) + seq.limits.max_tokens for seq in self._sequences())
        for _ in range(20 * tokens + 100):
            moved = self.engine.step() is not None
            for seq_id in sorted(self.engine.lookups):
                moved = True
                held = self.engine.held_by_tier(seq_id)
                if seq_id in self.engine.filling:
                    self.engine.loaded(seq_id, min(held, len(self.engine.filling[seq_id])))
                elif self.engine.found(seq_id, held):
                    self.engine.loaded(seq_id, len(self.engine.filling[seq_id]))
            if not moved:
                break
        assert not self._live()

    def _check_ends(self) -> None:
        ends = Counter(end.seq_id for end in self.engine.ends)
        assert ends == Counter(dict.fromkeys(self.prompts, 1))
        for seq_id in set(self.prompts) - self.cut_short:
            seq = self.engine.sequences[seq_id]
            assert seq.output == expected_output(self.prompts[seq_id], seq.limits)

    def _plan(self) -> None:
        """A plan obeys its budget, and decodes go before everything else."""
        config = self.engine.batcher.config
        ready = {
            seq.seq_id
            for seq in self._sequences()
            if seq.status is Status.RUNNING and seq.num_uncomputed == 1
        }
        plan = self.engine.plan()
        if plan is None:
            return
        assert plan.num_tokens <= config.max_batch_tokens
        assert len(plan.chunks) <= config.max_seqs
        order = [chunk.seq_id in ready for chunk in plan.chunks]
        assert order == sorted(order, reverse=True)
        for chunk in plan.chunks:
            seq = self.engine.sequences[chunk.seq_id]
            assert list(chunk.tokens) == seq.tokens[chunk.start : chunk.start + chunk.count]
            assert chunk.sample == (chunk.start + chunk.count == len(seq.tokens))
            assert chunk.count <= config.chunk_limit

    def _live(self) -> list[str]:
        return sorted(s.seq_id for s in self._sequences() if s.status is not Status.FINISHED)

    def _sequences(self) -> list[Sequence]:
        return list(self.engine.sequences.values())


TestTraffic = Traffic.TestCase
TestTraffic.settings = settings(
    max_examples=60,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
