"""The demo model in float32 against the reference's golden tokens, on prompts from real agent runs.

`scripts/make_goldens.py` made the goldens with transformers. The fast tests take the shortest
prompts; `slow` ones take all of them, and compare logits with transformers itself.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from libs.demo.model import ensure_demo_model
from services.modelserver.herd.models.llama import LlamaModel
from services.modelserver.herd.models.loader import load_model
from services.modelserver.tests.models.factories import (
    Driven,
    Driver,
    assert_greedy_equal,
    reference_logits,
)

GOLDENS = Path(__file__).parents[4] / "tests" / "data" / "goldens_smollm2.json"
FEW = 2


@dataclass(frozen=True)
class Golden:
    id: str
    prompt: list[int]
    tokens: list[int]
    gaps: list[float]


def goldens() -> list[Golden]:
    """Shortest prompts first."""
    stored = [Golden(**line) for line in json.loads(GOLDENS.read_text())["goldens"]]
    return sorted(stored, key=lambda golden: len(golden.prompt))


@pytest.fixture(scope="module")
def model() -> LlamaModel:
    return load_model(ensure_demo_model(), "float32").model


def check(golden: Golden, tokens: Sequence[int]) -> None:
    print(golden.id)
    assert_greedy_equal(tokens, golden.tokens, golden.gaps)


def check_alone(model: LlamaModel, chosen: Sequence[Golden], chunk: int) -> None:
    for golden in chosen:
        driver = Driver(model)
        count = len(golden.tokens)
        check(golden, driver.greedy(driver.sequence(golden.prompt, room=count), count, chunk))


def check_together(model: LlamaModel, chosen: Sequence[Golden]) -> None:
    """Prefilled one after another, then decoded in one batch."""
    driver = Driver(model, num_blocks=sum(len(g.prompt) // 32 + 3 for g in chosen))
    count = len(chosen[0].tokens)
    sequences = [driver.sequence(golden.prompt, room=count) for golden in chosen]
    for sequence in sequences:
        driver.greedy(sequence, 1)
    for _ in range(count - 1):
        logits = driver.forward([sequence.chunk(1) for sequence in sequences])
        for sequence, row in zip(sequences, logits, strict=True):
            sequence.tokens.append(int(row.argmax()))
    for golden, sequence in zip(chosen, sequences, strict=True):
        check(golden, sequence.tokens[len(golden.prompt) :])


def check_prefix_hit(model: LlamaModel, golden: Golden, cached: int) -> None:
    """Another sequence computed the first ``cached`` tokens; their KV went out and came back."""
    driver = Driver(model, num_blocks=200)
    first = driver.sequence(golden.prompt[:cached])
    driver.forward([first.chunk(cached)])
    count = len(golden.tokens)
    second: Driven = driver.sequence(golden.prompt, room=count)
    for old, new in zip(first.block_table, second.block_table, strict=False):
        driver.kv.write_block(new, bytes(driver.kv.read_block(old)))
    second.done = cached
    check(golden, driver.greedy(second, count))


def test_greedy_equals_the_goldens_alone(model: LlamaModel) -> None:
    check_alone(model, goldens()[:FEW], chunk=10_000)


def test_greedy_equals_the_goldens_in_one_batch(model: LlamaModel) -> None:
    check_together(model, goldens()[: 3 * FEW])


def test_greedy_equals_the_goldens_on_a_prefix_hit(model: LlamaModel) -> None:
    check_prefix_hit(model, goldens()[FEW], cached=32)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("chunk", [10_000, 127])
def test_all_goldens_alone(model: LlamaModel, chunk: int) -> None:
    check_alone(model, goldens(), chunk)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_all_goldens_in_batches_of_sixteen(model: LlamaModel) -> None:
    every = goldens()
    for start in range(0, len(every), 16):
        check_together(model, every[start : start + 16])


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("cached", [31, 32, 33, 63, 64, 65])
def test_all_goldens_on_a_prefix_hit(model: LlamaModel, cached: int) -> None:
    for golden in goldens():
        if len(golden.prompt) > cached:
            check_prefix_hit(model, golden, cached)


@pytest.mark.slow
def test_logits_are_near_transformers_own(model: LlamaModel) -> None:
    from transformers import AutoModelForCausalLM

    path = ensure_demo_model()
    reference: Any = AutoModelForCausalLM.from_pretrained(
        path.parent, gguf_file=path.name, dtype=torch.float32
    )
    prompt = goldens()[25].prompt
    driver = Driver(model)
    sequence = driver.sequence(prompt)
    ours = torch.cat([driver.forward([sequence.chunk(1, sample=True)]) for _ in prompt[:40]])
    theirs = reference_logits(reference, prompt[:40])
    torch.testing.assert_close(ours, theirs, atol=2e-3, rtol=1e-4)
