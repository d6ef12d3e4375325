"""The whole engine on the demo model says what transformers says, in every regime.

Prompts are from real agent runs (tests/data/prompts_50.jsonl). The fast tests take a few; the slow
ones take all fifty.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest

from libs.demo.model import ensure_demo_model
from libs.hashing import BLOCK_TOKENS
from services.modelserver.herd.core.batcher import Batcher, BatcherConfig
from services.modelserver.herd.engine.engine import Engine
from services.modelserver.herd.engine.kv_cache import KvCache
from services.modelserver.herd.engine.runner import Runner
from services.modelserver.herd.models.loader import LoadedModel, load_model
from services.modelserver.tests.engine.rig import NAMESPACE, Collector, spec
from services.modelserver.tests.goldens import Golden, goldens
from services.modelserver.tests.models.factories import assert_greedy_equal

LONG = pytest.mark.timeout(3000)


@pytest.fixture(scope="module")
def loaded() -> LoadedModel:
    return load_model(ensure_demo_model(), "float32", threads=1)


def make_engine(
    loaded: LoadedModel, blocks: int, *, max_batch_tokens: int = 256, lower_tier: bool = False
) -> Engine:
    kv = KvCache(blocks, loaded.config)
    config = BatcherConfig(
        num_blocks=blocks,
        max_batch_tokens=max_batch_tokens,
        max_seqs=16,
        external_tier=lower_tier,
    )
    ticks = itertools.count()
    return Engine(
        Batcher(config),
        Runner(loaded.model, kv),
        kv,
        NAMESPACE,
        now=lambda: float(next(ticks)),
        store_evicted=lower_tier,
    )


def blocks_of(golden: Golden) -> int:
    return -(-(len(golden.prompt) + len(golden.tokens)) // BLOCK_TOKENS)


def check(said: Collector, step_id: str, golden: Golden) -> None:
    print(f"{golden.id}, {len(golden.prompt)} tokens:")
    assert_greedy_equal(said.tokens[step_id, 0], golden.tokens, golden.gaps)


def run_together(
    loaded: LoadedModel, chosen: Sequence[Golden], blocks: int, max_batch_tokens: int = 256
) -> Collector:
    said = Collector(make_engine(loaded, blocks, max_batch_tokens=max_batch_tokens))
    for golden in chosen:
        said.engine.add(spec(golden.id, golden.prompt, len(golden.tokens)))
    said.run()
    for golden in chosen:
        check(said, golden.id, golden)
    return said


def run_alone(loaded: LoadedModel, chosen: Sequence[Golden]) -> None:
    said = Collector(make_engine(loaded, max(map(blocks_of, chosen))))
    for golden in chosen:
        said.engine.add(spec(golden.id, golden.prompt, len(golden.tokens)))
        said.run()
        check(said, golden.id, golden)


def run_on_prefix_hits(loaded: LoadedModel, golden: Golden, cached: Sequence[int]) -> None:
    """Another step computed the first `cached` tokens of the prompt before."""
    for length in cached:
        said = Collector(make_engine(loaded, blocks_of(golden) + 4))
        said.engine.add(spec("head", golden.prompt[:length], 1))
        said.run()
        said.engine.add(spec("whole", golden.prompt, len(golden.tokens)))
        said.run()
        hit = min(length, len(golden.prompt) - 1) // BLOCK_TOKENS * BLOCK_TOKENS
        assert said.cached["whole"] == hit
        check(said, "whole", golden)


def run_preempted(loaded: LoadedModel, chosen: Sequence[Golden]) -> int:
    """The pool holds the prompts, not their answers, and all begin to answer together: somebody
    must give way and come back. How often that happened."""
    blocks = sum(-(-len(golden.prompt) // BLOCK_TOKENS) for golden in chosen)
    enough = max(blocks, max(map(blocks_of, chosen)))
    said = run_together(loaded, chosen, enough, max_batch_tokens=4096)
    return sum(said.preemptions.values())


def run_through_the_lower_tier(loaded: LoadedModel, chosen: Sequence[Golden]) -> None:
    """Each prompt runs, is pushed out by the others, and comes back from where it was stored."""
    said = Collector(make_engine(loaded, max(map(blocks_of, chosen)), lower_tier=True))
    for turn in ("cold", "warm"):
        for golden in chosen:
            step_id = f"{golden.id}-{turn}"
            said.engine.add(spec(step_id, golden.prompt, len(golden.tokens)))
            said.run()
            check(said, step_id, golden)
    assert said.loaded > 0


def borders(golden: Golden) -> list[int]:
    """Lengths around every block border of the prompt."""
    ends = range(BLOCK_TOKENS, len(golden.prompt) + 1, BLOCK_TOKENS)
    return [n for end in ends for n in (end - 1, end, end + 1) if n <= len(golden.prompt)]


def of_length(at_least: int) -> Golden:
    return next(golden for golden in goldens() if len(golden.prompt) >= at_least)


def test_two_prompts_alone(loaded: LoadedModel) -> None:
    run_alone(loaded, goldens()[:2])


def test_sixteen_prompts_in_one_batch(loaded: LoadedModel) -> None:
    chosen = goldens()[:16]
    run_together(loaded, chosen, sum(map(blocks_of, chosen)))


def test_a_prefix_hit_around_the_first_block_borders(loaded: LoadedModel) -> None:
    run_on_prefix_hits(loaded, of_length(66), [31, 32, 65])


def test_three_prompts_preempted(loaded: LoadedModel) -> None:
    chosen = [golden for golden in goldens() if len(golden.prompt) >= 60][:3]
    assert run_preempted(loaded, chosen) > 0


def test_two_prompts_through_the_lower_tier(loaded: LoadedModel) -> None:
    run_through_the_lower_tier(loaded, [of_length(66), of_length(100)])


@pytest.mark.slow
@LONG
def test_all_fifty_alone(loaded: LoadedModel) -> None:
    assert len(goldens()) == 50
    run_alone(loaded, goldens())


@pytest.mark.slow
@LONG
def test_all_fifty_in_batches_of_sixteen(loaded: LoadedModel) -> None:
    every = goldens()
    for start in range(0, len(every), 16):
        chosen = every[start : start + 16]
        run_together(loaded, chosen, sum(map(blocks_of, chosen)))


@pytest.mark.slow
@LONG
def test_all_fifty_again_on_the_hit_of_their_own_prompt(loaded: LoadedModel) -> None:
    for golden in goldens():
        run_on_prefix_hits(loaded, golden, [len(golden.prompt)])


@pytest.mark.slow
@LONG
def test_prefix_hits_around_every_block_border_of_a_long_prompt(loaded: LoadedModel) -> None:
    golden = of_length(300)
    run_on_prefix_hits(loaded, golden, borders(golden))


@pytest.mark.slow
@LONG
def test_all_fifty_preempted(loaded: LoadedModel) -> None:
    every = goldens()
    counts = [run_preempted(loaded, every[start : start + 8]) for start in range(0, 50, 8)]
    assert sum(count > 0 for count in counts) >= 5, "the pools were meant to be too small"


@pytest.mark.slow
@LONG
def test_all_fifty_through_the_lower_tier(loaded: LoadedModel) -> None:
    run_through_the_lower_tier(loaded, goldens())
