"""The model server without a model: its answers are a function of the prompt, through the pool."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import pytest

from services.modelserver.herd.core.batcher import Batcher, BatcherConfig
from services.modelserver.herd.core.plan import Chunk
from services.modelserver.herd.core.sequence import Limits
from services.modelserver.herd.engine.engine import Engine, StepInterrupted
from services.modelserver.herd.engine.sampled import RowSampling
from services.modelserver.herd.engine.sampling_params import SamplingParams
from services.modelserver.herd.engine.step import StepSpec
from services.modelserver.testing import (
    ScriptedConfig,
    ScriptedRunner,
    TokenPool,
    answer,
    answer_token,
)
from services.modelserver.tests.engine.rig import Collector

CONFIG = ScriptedConfig()
GREEDY = SamplingParams(temperature=0.0)
RANGE = (CONFIG.answers_from, CONFIG.answers_to)


@dataclass
class Rig:
    engine: Engine
    pool: TokenPool


def rig(blocks: int) -> Rig:
    pool = TokenPool(blocks)
    ticks = itertools.count()
    batcher = Batcher(
        BatcherConfig(num_blocks=blocks, max_batch_tokens=48, max_seqs=8, external_tier=True)
    )
    engine = Engine(
        batcher,
        ScriptedRunner(pool, CONFIG),
        pool,
        b"n" * 16,
        now=lambda: float(next(ticks)),
        store_evicted=True,
    )
    return Rig(engine, pool)


def spec(name: str, prompt: list[int], count: int) -> StepSpec:
    return StepSpec(name, prompt, b"s" * 16, Limits(count, ignore_eos=True), (GREEDY,), 0)


@pytest.mark.parametrize("blocks", [64, 9], ids=["roomy", "under pressure"])
def test_every_request_gets_its_own_answer_whatever_runs_beside_it(blocks: int) -> None:
    engine = rig(blocks).engine
    common = list(range(64))
    prompts = {f"r{i}": [*common, i, *range(i)] for i in range(6)}
    collector = Collector(engine)
    for name, prompt in prompts.items():
        engine.add(spec(name, prompt, 40))
    collector.run()
    for name, prompt in prompts.items():
        assert collector.tokens[name, 0] == answer(prompt, 40, *RANGE)
    if blocks == 9:
        assert collector.loaded > 0, "nothing came back from the lower tier"


def test_a_wrong_block_gives_a_wrong_answer() -> None:
    pool = TokenPool(2)
    runner = ScriptedRunner(pool, CONFIG)
    prompt = list(range(40))
    row = RowSampling(GREEDY, prompt, len(prompt))

    def ask() -> int:
        chunk = Chunk("s", 32, 8, (0, 1), tuple(prompt[32:]), sample=True)
        return runner.step((chunk,), [row], lambda: None).tokens[0]

    for at, token in enumerate(prompt[:32]):
        pool.put((0, 1), at, token)
    assert ask() == answer_token(prompt, *RANGE)
    saved = bytes(pool.read_block(0))
    pool.write_block(0, bytes(len(saved)))
    assert ask() == answer_token([0] * 32 + prompt[32:], *RANGE)
    pool.write_block(0, saved)
    assert ask() == answer_token(prompt, *RANGE)


def test_a_slow_step_is_given_up_when_it_is_not_wanted() -> None:
    slept: list[float] = []
    runner = ScriptedRunner(TokenPool(1), ScriptedConfig(step_s=10.0), slept.append)

    def unwanted() -> None:
        if len(slept) == 3:
            raise StepInterrupted

    with pytest.raises(StepInterrupted):
        runner.step((), [], unwanted)
    assert len(slept) == 3
