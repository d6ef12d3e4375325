"""A step that the model cannot run ends alone: the others say what they would have said anyway."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import pytest
from transformers import LlamaForCausalLM

from services.modelserver.herd.core.errors import EngineBroken
from services.modelserver.herd.core.plan import Chunk, FinishReason
from services.modelserver.herd.engine.engine import Engine, StepInterrupted, StepRunner
from services.modelserver.herd.engine.forward import go_on
from services.modelserver.herd.engine.sampled import RowSampling, Sampled
from services.modelserver.herd.engine.sampling_params import SamplingParams
from services.modelserver.tests.engine.rig import Collector, make_engine, spec
from services.modelserver.tests.models.factories import (
    assert_greedy_equal,
    prompt_of,
    reference_greedy,
    save_tiny,
    save_tiny_nan,
)

POISON = 7
"""A token that prompts are made to hold, or not."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tiny")


@pytest.fixture(scope="module")
def reference(folder: Path) -> LlamaForCausalLM:
    return save_tiny(folder)


class FaultyRunner:
    """Runs the model, and then raises as if that had failed in its last layer: KV is written, and
    the caller knows nothing of it. `raises` looks at all chunks of the step."""

    def __init__(
        self,
        runner: StepRunner,
        raises: Callable[[tuple[Chunk, ...]], bool],
        error: Callable[[], BaseException] = lambda: RuntimeError("shape mismatch"),
    ) -> None:
        self._runner = runner
        self._raises = raises
        self._error = error

    def step(
        self,
        chunks: tuple[Chunk, ...],
        sampling: list[RowSampling],
        checkpoint: Callable[[], None],
    ) -> Sampled:
        sampled = self._runner.step(chunks, sampling, checkpoint)
        if self._raises(chunks):
            raise self._error()
        return sampled


def feeds_poison(chunks: tuple[Chunk, ...]) -> bool:
    """A bad step's, that is: good ones may say it themselves."""
    return any(POISON in each.tokens for each in chunks if each.seq_id.startswith("bad"))


def clean(length: int, seed: int = 0) -> list[int]:
    return [token if token != POISON else POISON + 1 for token in prompt_of(length, seed)]


def poisoned(length: int, at: int, seed: int = 0) -> list[int]:
    prompt = clean(length, seed)
    prompt[at] = POISON
    return prompt


def faulty_engine(
    folder: Path,
    raises: Callable[[tuple[Chunk, ...]], bool] = feeds_poison,
    error: Callable[[], BaseException] = lambda: RuntimeError("shape mismatch"),
    blocks: int = 64,
    max_batch_tokens: int = 64,
    lower_tier: bool = False,
) -> Engine:
    return make_engine(
        folder,
        blocks=blocks,
        max_batch_tokens=max_batch_tokens,
        lower_tier=lower_tier,
        wrap=lambda runner: FaultyRunner(runner, raises, error),
    )


def check(reference: LlamaForCausalLM, said: Collector, step_id: str, prompt: list[int]) -> None:
    ours = said.tokens[step_id, 0]
    theirs, gaps = reference_greedy(reference, prompt, len(ours))
    assert_greedy_equal(ours, theirs, gaps)
    assert said.finish[step_id, 0] is FinishReason.LENGTH


def turn(said: Collector) -> None:
    said.take(said.engine.step(go_on) or pytest.fail("there was work"))
    said.engine.batcher.check_integrity()


@pytest.mark.parametrize("error", [RuntimeError, MemoryError, ValueError])
def test_one_bad_step_among_sixteen_ends_alone(
    folder: Path, reference: LlamaForCausalLM, error: type[Exception]
) -> None:
    said = Collector(faulty_engine(folder, feeds_poison, error, max_batch_tokens=1000))
    prompts = {f"s{n}": clean(40 + n) for n in range(15)}
    for step_id, prompt in prompts.items():
        said.engine.add(spec(step_id, prompt))
    said.engine.add(spec("bad", poisoned(50, 20, seed=1)))
    said.run()
    assert said.faulty == {"bad"}
    assert said.finish["bad", 0] is FinishReason.ERROR
    assert said.tokens["bad", 0] == []
    for step_id, prompt in prompts.items():
        check(reference, said, step_id, prompt)
    assert said.engine.batcher.stats().used_blocks == 0


def test_a_step_that_fails_half_way_keeps_what_was_told_and_tells_no_more(folder: Path) -> None:
    def late(chunks: tuple[Chunk, ...]) -> bool:
        return any(chunk.seq_id == "bad#0" and chunk.start >= 44 for chunk in chunks)

    said = Collector(faulty_engine(folder, late))
    said.engine.add(spec("good", clean(50), 20))
    said.engine.add(spec("bad", clean(40), 20))
    said.run()
    assert said.faulty == {"bad"}
    assert len(said.tokens["bad", 0]) == 5
    assert said.prompt_tokens["bad"] == 40
    assert len(said.tokens["good", 0]) == 20


def test_what_raises_once_costs_nobody_a_token(folder: Path, reference: LlamaForCausalLM) -> None:
    raised: list[bool] = []

    def the_third_turn(chunks: tuple[Chunk, ...]) -> bool:
        raised.append(len(raised) == 2)
        return raised[-1]

    said = Collector(faulty_engine(folder, the_third_turn))
    for n in range(5):
        said.engine.add(spec(f"s{n}", clean(40 + n)))
    said.run()
    assert any(raised) and not said.faulty
    for n in range(5):
        check(reference, said, f"s{n}", clean(40 + n))


def test_steps_that_only_fail_in_company_run_apart(
    folder: Path, reference: LlamaForCausalLM
) -> None:
    def crowded(chunks: tuple[Chunk, ...]) -> bool:
        return len(chunks) > 2

    said = Collector(faulty_engine(folder, crowded, MemoryError))
    for n in range(5):
        said.engine.add(spec(f"s{n}", clean(30 + n)))
    said.run()
    assert not said.faulty
    for n in range(5):
        check(reference, said, f"s{n}", clean(30 + n))


def test_all_choices_of_a_bad_step_end_with_it(folder: Path) -> None:
    def second_choice(chunks: tuple[Chunk, ...]) -> bool:
        return any(chunk.seq_id == "bad#1" and chunk.start >= 42 for chunk in chunks)

    said = Collector(faulty_engine(folder, second_choice))
    three = tuple(SamplingParams(temperature=1.0, seed=seed) for seed in range(3))
    said.engine.add(spec("bad", clean(40), 20, three))
    said.engine.add(spec("good", clean(45), 20))
    said.run()
    assert [said.finish["bad", choice] for choice in range(3)] == [FinishReason.ERROR] * 3
    assert said.faulty == {"bad"}
    assert len(said.tokens["good", 0]) == 20
    assert said.engine.batcher.stats().used_blocks == 0


def test_a_block_whose_forward_raised_is_never_hit(folder: Path) -> None:
    prompt = poisoned(200, 100)
    said = Collector(faulty_engine(folder))
    said.engine.add(spec("bad", prompt))
    said.engine.add(spec("good", clean(20)))
    said.run()
    assert said.faulty == {"bad"}
    # Blocks before the chunk that raised are whole and may be used.
    assert (said.prompt_tokens["bad"], said.cached["bad"]) == (64, 0)
    said.engine.add(spec("again", prompt[:100] + clean(60, seed=2)))
    said.run()
    assert said.cached["again"] == 64


def test_an_end_that_comes_while_suspects_are_tried_is_an_end(
    folder: Path, reference: LlamaForCausalLM
) -> None:
    said = Collector(faulty_engine(folder, max_batch_tokens=1000))
    prompts = {f"s{n}": clean(40 + n) for n in range(4)}
    for step_id, prompt in prompts.items():
        said.engine.add(spec(step_id, prompt, 4))
    said.engine.add(spec("bad", poisoned(50, 20), 4))
    turn(said)  # raises: all five are suspects
    assert said.engine.abort("s3")
    assert said.engine.abort("bad")
    said.run()
    assert said.finish["s3", 0] is FinishReason.ABORT
    assert not said.faulty
    for n in range(3):
        check(reference, said, f"s{n}", prompts[f"s{n}"])


def test_an_interrupted_turn_of_suspects_is_taken_again(folder: Path) -> None:
    said = Collector(faulty_engine(folder, max_batch_tokens=1000))
    for n in range(3):
        said.engine.add(spec(f"s{n}", clean(40 + n), 4))
    said.engine.add(spec("bad", poisoned(50, 20), 4))
    turn(said)

    def interrupt() -> None:
        raise StepInterrupted

    for _ in range(5):
        said.take(said.engine.step(interrupt) or pytest.fail("there was work"))
    said.run()
    assert said.faulty == {"bad"}
    assert all(len(said.tokens[f"s{n}", 0]) == 4 for n in range(3))


@pytest.mark.parametrize("lower_tier", [False, True])
def test_faults_under_pressure_lose_no_token(
    folder: Path, reference: LlamaForCausalLM, lower_tier: bool
) -> None:
    def bad_prompts(chunks: tuple[Chunk, ...]) -> bool:
        return any(chunk.seq_id.startswith("bad") and chunk.start >= 64 for chunk in chunks)

    said = Collector(faulty_engine(folder, bad_prompts, blocks=10, lower_tier=lower_tier))
    prompts = {f"s{n}": clean(60 + n) for n in range(4)}
    for n, (step_id, prompt) in enumerate(prompts.items()):
        said.engine.add(spec(step_id, prompt, 40))
        said.engine.add(spec(f"bad{n}", clean(50 + n, seed=3), 40))
    said.run()
    assert sum(said.preemptions.values()) > 0, "the pool was meant to be too small"
    assert said.faulty == {f"bad{n}" for n in range(4)}
    for step_id, prompt in prompts.items():
        assert len(said.tokens[step_id, 0]) == 40
        check(reference, said, step_id, prompt)


def test_an_engine_on_which_nothing_runs_dies(folder: Path) -> None:
    said = Collector(faulty_engine(folder, lambda chunks: True))
    for n in range(3):
        said.engine.add(spec(f"s{n}", clean(20 + n)))
    with pytest.raises(EngineBroken) as broken:
        said.run()
    assert isinstance(broken.value.__context__, RuntimeError)
    assert not said.ended


def test_what_is_no_exception_of_a_step_passes_through(folder: Path) -> None:
    said = Collector(faulty_engine(folder, feeds_poison, KeyboardInterrupt))
    said.engine.add(spec("bad", poisoned(20, 3)))
    with pytest.raises(KeyboardInterrupt):
        said.run()


def test_the_trace_is_logged_once_with_the_step(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    said = Collector(faulty_engine(folder))
    for n in range(3):
        said.engine.add(spec(f"s{n}", clean(30 + n), 4))
    said.engine.add(spec("bad", poisoned(20, 3), 4))
    with caplog.at_level(logging.WARNING):
        said.run()
    first, last = caplog.records
    assert (first.levelno, last.levelno) == (logging.WARNING, logging.ERROR)
    assert last.__dict__["step"] == "bad"
    assert last.exc_info and last.exc_info[0] is RuntimeError


@pytest.fixture(scope="module")
def nan_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose embedding of POISON is no number."""
    folder = tmp_path_factory.mktemp("nan")
    save_tiny_nan(folder, POISON)
    return folder


@pytest.mark.parametrize("at", [3, 90, 199])
def test_a_prompt_that_has_no_finite_logits_ends_alone_and_names_no_block(
    nan_folder: Path, at: int
) -> None:
    prompt = poisoned(200, at)
    said = Collector(make_engine(nan_folder))
    alone = Collector(make_engine(nan_folder))
    for n in range(4):
        for each in (said, alone):
            each.engine.add(spec(f"s{n}", clean(40 + n)))
    said.engine.add(spec("bad", prompt))
    said.run()
    alone.run()
    assert said.faulty == {"bad"}
    assert said.tokens["bad", 0] == []
    for n in range(4):
        assert said.tokens[f"s{n}", 0] == alone.tokens[f"s{n}", 0]
    said.engine.add(spec("again", prompt))
    said.run()
    assert said.faulty == {"bad", "again"}
    assert said.cached["again"] <= at
