"""The batcher by situation; longer stories are in testdata, everything at once in properties."""

import pytest

from services.modelserver.herd.core.batcher import Batcher, BatcherConfig
from services.modelserver.herd.core.errors import NeverFits, ProtocolError, UnknownSequence
from services.modelserver.herd.core.plan import Finished, FinishReason, StepPlan
from services.modelserver.herd.core.sequence import Limits
from services.modelserver.tests.core.factories import make_batcher, make_sequence, stream
from services.modelserver.tests.core.sim_engine import SimEngine


def planned(batcher: Batcher) -> StepPlan:
    plan = batcher.plan()
    assert plan is not None
    return plan


def test_nothing_to_do() -> None:
    assert make_batcher().plan() is None


def test_the_shells_reason_wins_over_the_batchers() -> None:
    batcher = make_batcher()
    batcher.add(make_sequence("a", "a:5", max_tokens=1))
    ended = batcher.commit(planned(batcher), {"a": [9]}, {"a": FinishReason.STOP})
    assert ended == [Finished("a", "a", FinishReason.STOP)]


def test_several_tokens_a_step_are_fed_together_in_the_next() -> None:
    batcher = make_batcher()
    seq = make_sequence("a", "a:5", max_tokens=8)
    batcher.add(seq)
    batcher.commit(planned(batcher), {"a": [7, 8, 9]})
    (chunk,) = planned(batcher).chunks
    assert (chunk.start, chunk.tokens, chunk.sample) == (5, (7, 8, 9), True)


def test_only_some_requests_are_fed_when_only_those_are_asked_for() -> None:
    engine = SimEngine(make_batcher())
    for name in "abc":
        engine.add(make_sequence(name, f"{name}:5"))
    assert engine.plan({"a"}) is None, "nobody is admitted for it"
    engine.step()
    engine.add(make_sequence("late", "late:5"))
    some = engine.plan({"a", "c", "late", "gone"})
    assert some is not None and [chunk.seq_id for chunk in some.chunks] == ["a", "c"]
    engine.commit()
    assert engine.plan({"late"}) is None
    everyone = engine.plan()
    assert everyone is not None
    assert [chunk.seq_id for chunk in everyone.chunks] == ["a", "b", "c", "late"]


def test_tokens_after_the_one_that_ends_it_are_dropped() -> None:
    batcher = make_batcher()
    seq = make_sequence("a", "a:5", limits=Limits(8, stop_token_ids=frozenset({8})))
    batcher.add(seq)
    ended = batcher.commit(planned(batcher), {"a": [7, 8, 9]})
    assert [end.reason for end in ended] == [FinishReason.STOP]
    assert seq.output == [7, 8]


def test_n_outputs_share_the_prompts_blocks() -> None:
    engine = SimEngine(make_batcher(num_blocks=8, max_batch_tokens=256))
    for copy in range(3):
        engine.add(make_sequence(f"r/{copy}", "x:100", max_tokens=20, request_id="r"))
    first = engine.step()
    second = engine.step()
    assert first is not None and [c.count for c in first.chunks] == [100]
    assert second is not None and [c.count for c in second.chunks] == [1, 4, 4]
    assert len({chunk.block_table[:3] for chunk in second.chunks}) == 1
    assert engine.batcher.stats().used_blocks == 3 + 3
    assert [s.num_cached_tokens for s in engine.sequences.values()] == [0, 96, 96]


def test_an_abort_ends_every_output_of_the_request_and_no_other() -> None:
    batcher = make_batcher()
    for seq_id, request in (("r/0", "r"), ("r/1", "r"), ("s", "s")):
        batcher.add(make_sequence(seq_id, f"{seq_id}:5", request_id=request))
    assert {end.seq_id for end in batcher.abort("r")} == {"r/0", "r/1"}
    assert batcher.abort("r") == []
    assert [chunk.seq_id for chunk in planned(batcher).chunks] == ["s"]


def test_the_same_content_computed_twice_ends_in_one_block() -> None:
    engine = SimEngine(make_batcher(max_batch_tokens=256))
    # Both prompts end at a block's border, so each computes the last block itself.
    engine.add(make_sequence("a", "x:64", max_tokens=40))
    engine.step()
    engine.add(make_sequence("b", "x:64", max_tokens=40))
    engine.step()
    a, b = engine.sequences["a"], engine.sequences["b"]
    assert a.block_table[:2] == b.block_table[:2]
    engine.batcher.check_integrity()


def test_a_missing_sample_is_refused_and_changes_nothing() -> None:
    batcher = make_batcher()
    batcher.add(make_sequence("a", "a:5"))
    plan = planned(batcher)
    with pytest.raises(ProtocolError, match="no token sampled"):
        batcher.commit(plan, {})
    assert batcher.commit(plan, {"a": [1]}) == []
    assert batcher.stats().sampled_tokens == 1


def test_an_aborted_sequence_needs_no_sample() -> None:
    batcher = make_batcher()
    batcher.add(make_sequence("a", "a:40"))
    plan = planned(batcher)
    batcher.abort("a")
    assert batcher.commit(plan, {}) == []
    assert batcher.stats().cached_blocks == 1


def test_plans_do_not_overlap() -> None:
    batcher = make_batcher()
    batcher.add(make_sequence("a", "a:5"))
    plan = planned(batcher)
    with pytest.raises(ProtocolError):
        batcher.plan()
    batcher.commit(plan, {"a": [1]})
    with pytest.raises(ProtocolError):
        batcher.commit(plan, {"a": [1]})
    with pytest.raises(ProtocolError):
        batcher.discard(plan)


def test_a_sequence_is_finished_once() -> None:
    batcher = make_batcher()
    batcher.add(make_sequence("a", "a:5"))
    planned(batcher)
    batcher.finish("a", FinishReason.STOP)
    with pytest.raises(UnknownSequence):
        batcher.finish("a", FinishReason.STOP)
    with pytest.raises(UnknownSequence):
        batcher.finish("b", FinishReason.STOP)


def test_what_can_never_fit_is_refused_with_the_numbers() -> None:
    batcher = make_batcher(num_blocks=3)
    with pytest.raises(NeverFits, match="4 KV blocks, the pool has 3") as refused:
        batcher.add(make_sequence("a", stream("a", 90), max_tokens=8))
    assert (refused.value.reason, refused.value.field) == ("EXCEEDS_KV_POOL", "max_tokens")


def test_answers_nobody_asked_for_are_refused() -> None:
    batcher = make_batcher(external_tier=True)
    batcher.add(make_sequence("a", "a:40"))
    for answer in (
        lambda: batcher.external_found("a", 1),
        lambda: batcher.external_loaded("a", []),
        lambda: batcher.external_failed("a"),
    ):
        with pytest.raises(ProtocolError):
            answer()


def test_more_blocks_loaded_than_reserved_is_refused() -> None:
    batcher = make_batcher(external_tier=True)
    batcher.add(make_sequence("a", "a:40"))
    batcher.commit(planned(batcher), {})
    batcher.external_found("a", 5)
    with pytest.raises(ProtocolError, match="more blocks"):
        batcher.external_loaded("a", [tuple(range(32))] * 2)


@pytest.mark.parametrize(
    ("budget", "seqs", "chunk", "watermark"),
    [(4, 5, None, None), (4, 0, None, None), (4, 4, 0, None), (4, 4, None, -1)],
)
def test_a_configuration_that_cannot_work_is_refused(
    budget: int, seqs: int, chunk: int | None, watermark: int | None
) -> None:
    with pytest.raises(ValueError):
        BatcherConfig(8, budget, seqs, chunk, watermark)


def test_lookups_hold_prefixes_for_no_more_than_could_run() -> None:
    batcher = make_batcher(max_seqs=2, external_tier=True)
    for name in ("a", "b", "c"):
        batcher.add(make_sequence(name, f"{name}:40"))
    plan = planned(batcher)
    assert [lookup.seq_id for lookup in plan.lookups] == ["a", "b"]
    batcher.commit(plan, {})
    assert batcher.plan() is None
    batcher.external_failed("a")
    assert [chunk.seq_id for chunk in planned(batcher).chunks] == ["a"]


def test_a_short_prompt_is_not_looked_up() -> None:
    batcher = make_batcher(external_tier=True)
    batcher.add(make_sequence("a", "a:32"))
    plan = planned(batcher)
    assert not plan.lookups and len(plan.chunks) == 1


def test_a_newcomer_waits_for_the_last_block_that_it_shares_and_can_hit() -> None:
    batcher = make_batcher(max_batch_tokens=64, prefill_chunk=32)
    computing = make_sequence("a", "x:96+a:40")
    waiter, twin = make_sequence("b", "x:96+b:40"), make_sequence("c", "x:96")
    for seq in (computing, waiter, twin):
        batcher.add(seq)
    assert [chunk.seq_id for chunk in planned(batcher).chunks] == ["a"]
    assert waiter.waits_on == computing.keys[2]
    assert twin.waits_on == computing.keys[1]
