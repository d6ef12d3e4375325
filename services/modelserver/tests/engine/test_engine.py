"""The engine against Hugging Face's own model: the same tokens, whatever happens around a step."""

from pathlib import Path

import pytest
from transformers import LlamaForCausalLM

from services.modelserver.herd.core.errors import DuplicateSequence, NeverFits
from services.modelserver.herd.core.plan import FinishReason
from services.modelserver.herd.engine.engine import StepInterrupted
from services.modelserver.herd.engine.forward import go_on
from services.modelserver.herd.engine.sampling_params import SamplingParams
from services.modelserver.tests.engine.rig import Collector, make_engine, spec
from services.modelserver.tests.models.factories import (
    assert_greedy_equal,
    prompt_of,
    reference_greedy,
    save_tiny,
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tiny")


@pytest.fixture(scope="module")
def reference(folder: Path) -> LlamaForCausalLM:
    return save_tiny(folder)


def check(reference: LlamaForCausalLM, said: Collector, step_id: str, prompt: list[int]) -> None:
    ours = said.tokens[step_id, 0]
    theirs, gaps = reference_greedy(reference, prompt, len(ours))
    assert_greedy_equal(ours, theirs, gaps)


def test_steps_of_many_lengths_in_one_batch_say_what_each_says_alone(
    folder: Path, reference: LlamaForCausalLM
) -> None:
    said = Collector(make_engine(folder))
    prompts = {f"s{n}": prompt_of(n) for n in (1, 31, 32, 33, 63, 64, 65, 100)}
    for step_id, prompt in prompts.items():
        said.engine.add(spec(step_id, prompt))
    said.run()
    for step_id, prompt in prompts.items():
        assert len(said.tokens[step_id, 0]) == 8
        check(reference, said, step_id, prompt)


def test_a_step_that_joins_a_running_batch_changes_nobody(
    folder: Path, reference: LlamaForCausalLM
) -> None:
    said = Collector(make_engine(folder))
    said.engine.add(spec("first", prompt_of(40), 12))
    for _ in range(3):
        said.take(said.engine.step(go_on) or pytest.fail("the first step has work"))
    said.engine.add(spec("second", prompt_of(50), 12))
    said.run()
    check(reference, said, "first", prompt_of(40))
    check(reference, said, "second", prompt_of(50))


@pytest.mark.parametrize("length", [31, 32, 33, 64, 65, 96])
def test_a_prefix_hit_gives_the_tokens_of_a_cold_start(
    folder: Path, reference: LlamaForCausalLM, length: int
) -> None:
    said = Collector(make_engine(folder))
    prompt = prompt_of(length)
    said.engine.add(spec("cold", prompt))
    said.run()
    said.engine.add(spec("warm", prompt))
    said.run()
    assert said.cached["warm"] == (length - 1) // 32 * 32
    assert said.tokens["warm", 0] == said.tokens["cold", 0]
    check(reference, said, "warm", prompt)


def test_two_accounts_never_share_a_block(folder: Path) -> None:
    said = Collector(make_engine(folder))
    said.engine.add(spec("mine", prompt_of(96)))
    said.run()
    said.engine.add(spec("theirs", prompt_of(96), salt=b"t" * 16))
    said.run()
    assert said.cached["theirs"] == 0
    assert said.tokens["mine", 0] == said.tokens["theirs", 0]


def test_preempted_steps_lose_no_token(folder: Path, reference: LlamaForCausalLM) -> None:
    said = Collector(make_engine(folder, blocks=10))
    prompts = {f"s{n}": prompt_of(60 + n) for n in range(4)}
    for step_id, prompt in prompts.items():
        said.engine.add(spec(step_id, prompt, 40))
    said.run()
    assert sum(said.preemptions.values()) > 0, "the pool was meant to be too small"
    for step_id, prompt in prompts.items():
        assert len(said.tokens[step_id, 0]) == 40
        check(reference, said, step_id, prompt)


def test_what_was_evicted_comes_back_from_the_lower_tier_and_says_the_same(
    folder: Path, reference: LlamaForCausalLM
) -> None:
    said = Collector(make_engine(folder, blocks=8, lower_tier=True))
    prompt = prompt_of(130)
    said.engine.add(spec("cold", prompt))
    said.run()
    for n in range(3):
        said.engine.add(spec(f"other{n}", prompt_of(140, seed=n + 1)))
        said.run()
    assert said.stored, "the others were meant to push the first out"
    said.engine.add(spec("warm", prompt))
    said.run()
    assert said.loaded > 0
    assert said.cached["warm"] >= 32
    check(reference, said, "warm", prompt)


def test_a_block_of_other_tokens_from_the_lower_tier_is_refused(
    folder: Path, reference: LlamaForCausalLM
) -> None:
    said = Collector(make_engine(folder, blocks=8, lower_tier=True))
    prompt = prompt_of(130)
    said.engine.add(spec("cold", prompt))
    said.run()
    for n in range(3):
        said.engine.add(spec(f"other{n}", prompt_of(140, seed=n + 1)))
        said.run()
    names = list(said.stored)
    wrong = {key: said.stored[other] for key, other in zip(names, reversed(names), strict=True)}
    said.stored = wrong
    said.engine.add(spec("warm", prompt))
    said.run()
    assert said.engine.batcher.stats().mismatches > 0
    check(reference, said, "warm", prompt)


def test_two_choices_with_their_own_seeds_differ_and_repeat(folder: Path) -> None:
    sampling = tuple(SamplingParams(temperature=1.5, seed=seed) for seed in (7, 8))
    runs = []
    for _ in range(2):
        said = Collector(make_engine(folder))
        said.engine.add(spec("s", prompt_of(40), 12, sampling))
        said.run()
        runs.append((said.tokens["s", 0], said.tokens["s", 1]))
    assert runs[0] == runs[1]
    assert runs[0][0] != runs[0][1]


def test_choices_of_one_step_share_the_prompt(folder: Path) -> None:
    said = Collector(make_engine(folder))
    sampling = tuple(SamplingParams(temperature=1.0, seed=seed) for seed in range(4))
    said.engine.add(spec("s", prompt_of(100), 4, sampling))
    said.run()
    assert said.engine.batcher.stats().fed_tokens < 100 + 3 * 8 + 4 * 4
    assert [said.finish["s", choice] for choice in range(4)] == [FinishReason.LENGTH] * 4


def test_an_interrupted_step_is_run_again_without_a_trace(
    folder: Path, reference: LlamaForCausalLM
) -> None:
    said = Collector(make_engine(folder))
    said.engine.add(spec("kept", prompt_of(50), 6))
    said.engine.add(spec("gone", prompt_of(60), 6))
    calls = 0

    def interrupt_in_the_second_layer() -> None:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise StepInterrupted

    said.take(said.engine.step(interrupt_in_the_second_layer) or pytest.fail("work was queued"))
    said.engine.batcher.check_integrity()
    assert said.engine.abort("gone")
    said.run()
    assert said.finish["gone", 0] is FinishReason.ABORT
    check(reference, said, "kept", prompt_of(50))


def test_an_aborted_step_leaves_no_block_in_use(folder: Path) -> None:
    said = Collector(make_engine(folder))
    said.engine.add(spec("s", prompt_of(100), 50))
    for _ in range(4):
        said.take(said.engine.step(go_on) or pytest.fail("work was queued"))
    assert said.engine.abort("s")
    assert not said.engine.abort("s")
    said.run()
    assert said.engine.batcher.stats().used_blocks == 0
    assert said.finish["s", 0] is FinishReason.ABORT
    assert "s" in said.ended


@pytest.mark.parametrize(("steps", "computed"), [(0, 0), (1, 64), (3, 192), (4, 200), (6, 200)])
def test_a_step_that_is_aborted_tells_the_prompt_tokens_that_were_computed(
    folder: Path, steps: int, computed: int
) -> None:
    said = Collector(make_engine(folder, max_batch_tokens=64))
    said.engine.add(spec("s", prompt_of(200), 50))
    for _ in range(steps):
        said.take(said.engine.step(go_on) or pytest.fail("work was queued"))
    assert said.engine.abort("s")
    said.run()
    assert (said.prompt_tokens["s"], said.cached["s"]) == (computed, 0)


def test_an_aborted_step_tells_what_it_found_and_what_was_fed(folder: Path) -> None:
    said = Collector(make_engine(folder, max_batch_tokens=64))
    said.engine.add(spec("first", prompt_of(200)))
    said.run()
    assert said.prompt_tokens["first"] == 200
    said.engine.add(spec("s", prompt_of(200)[:96] + prompt_of(200, seed=1)[:150]))
    said.take(said.engine.step(go_on) or pytest.fail("work was queued"))
    assert said.engine.abort("s")
    said.run()
    assert (said.prompt_tokens["s"], said.cached["s"]) == (96 + 64, 96)


def test_ending_one_choice_for_a_stop_string_leaves_the_other_running(folder: Path) -> None:
    said = Collector(make_engine(folder))
    sampling = tuple(SamplingParams(temperature=1.0, seed=seed) for seed in range(2))
    said.engine.add(spec("s", prompt_of(40), 20, sampling))
    for _ in range(4):
        said.take(said.engine.step(go_on) or pytest.fail("work was queued"))
    assert said.engine.end_choice("s", 1, FinishReason.STOP)
    said.run()
    assert said.finish["s", 1] is FinishReason.STOP
    assert len(said.tokens["s", 0]) == 20
    assert len(said.tokens["s", 1]) < 20


def test_engine_time_is_booked_to_steps_without_a_rest(folder: Path) -> None:
    said = Collector(make_engine(folder))
    for n in range(5):
        said.engine.add(spec(f"s{n}", prompt_of(30 + 10 * n)))
    said.run()
    assert sum(said.ended.values()) == pytest.approx(said.busy_s)


def test_a_step_larger_than_the_pool_is_refused_whole(folder: Path) -> None:
    said = Collector(make_engine(folder, blocks=4))
    two = (SamplingParams(temperature=0.0, seed=1), SamplingParams(temperature=0.0, seed=2))
    with pytest.raises(NeverFits):
        said.engine.add(spec("s", prompt_of(100), 100, two))
    assert not said.engine.has_work


def test_a_step_id_in_use_is_refused_and_the_first_goes_on(folder: Path) -> None:
    said = Collector(make_engine(folder))
    said.engine.add(spec("s", prompt_of(40)))
    with pytest.raises(DuplicateSequence):
        said.engine.add(spec("s", prompt_of(41)))
    said.run()
    assert len(said.tokens["s", 0]) == 8
