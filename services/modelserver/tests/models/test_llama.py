"""Our Llama against Hugging Face's: the same greedy tokens in float32, in every shape it comes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from services.modelserver.herd.engine.forward import build_batch
from services.modelserver.tests.models.factories import (
    Driver,
    assert_greedy_equal,
    load_tiny,
    prompt_of,
    reference_greedy,
    reference_logits,
    save_tiny,
)

LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
SHAPES: dict[str, dict[str, Any]] = {
    "tied": {},
    "untied": {"tie_word_embeddings": False},
    "one KV head a query head": {"num_key_value_heads": 6},
    "one KV head for all": {"num_key_value_heads": 1},
    "head_dim of 64": {"head_dim": 64},
    "llama3 rope": {"rope_parameters": LLAMA3},
    "linear rope": {
        "rope_parameters": {"rope_type": "linear", "rope_theta": 10_000.0, "factor": 4.0}
    },
    "large theta": {"rope_parameters": {"rope_type": "default", "rope_theta": 500_000.0}},
    "one layer": {"num_hidden_layers": 1},
}


@pytest.mark.parametrize("native", [True, False], ids=["native", "torch"])
@pytest.mark.parametrize("shape", SHAPES)
def test_greedy_tokens_equal_the_reference(shape: str, native: bool, tmp_path: Path) -> None:
    reference = save_tiny(tmp_path, **SHAPES[shape])
    driver = Driver(load_tiny(tmp_path, native=native))
    for length in (1, 31, 100):
        prompt = prompt_of(length)
        theirs, gaps = reference_greedy(reference, prompt, 40)
        ours = driver.greedy(driver.sequence(prompt, room=40), 40)
        assert_greedy_equal(ours, theirs, gaps)
        assert len(set(theirs)) > 5, "a model that repeats one token proves nothing"


@pytest.mark.parametrize("stored", ["bfloat16", "float16"])
def test_sixteen_bit_folders_are_widened_to_float32(stored: str, tmp_path: Path) -> None:
    reference = save_tiny(tmp_path).to(getattr(torch, stored))
    reference.save_pretrained(tmp_path)
    driver = Driver(load_tiny(tmp_path))
    prompt = prompt_of(50)
    theirs, gaps = reference_greedy(reference.float(), prompt, 20)
    assert_greedy_equal(driver.greedy(driver.sequence(prompt, room=20), 20), theirs, gaps)


def test_a_sharded_folder_is_the_same_model(tmp_path: Path) -> None:
    reference = save_tiny(tmp_path / "whole", tie_word_embeddings=False)
    reference.save_pretrained(tmp_path / "shards", max_shard_size="50KB")
    assert len(list((tmp_path / "shards").glob("*.safetensors"))) > 2
    logits = [
        driver.forward([driver.sequence(prompt_of(40)).chunk(40)])
        for driver in (Driver(load_tiny(tmp_path / name)) for name in ("whole", "shards"))
    ]
    assert torch.equal(*logits)


def test_logits_are_near_the_reference_at_every_position(tmp_path: Path) -> None:
    reference = save_tiny(tmp_path)
    driver = Driver(load_tiny(tmp_path))
    tokens = prompt_of(97)
    sequence = driver.sequence(tokens)
    ours = torch.cat([driver.forward([sequence.chunk(1, sample=True)]) for _ in tokens])
    torch.testing.assert_close(ours, reference_logits(reference, tokens), atol=2e-4, rtol=1e-4)


@pytest.mark.parametrize("native", [True, False], ids=["native", "torch"])
def test_the_first_of_the_largest_logits_is_known(native: bool, tmp_path: Path) -> None:
    """With ties, in the rest beyond the last whole vector too: all tokens from 200 on are alike."""
    reference = save_tiny(tmp_path, tie_word_embeddings=False)
    with torch.no_grad():
        reference.lm_head.weight[200:] = reference.lm_head.weight[200] * 1.5
    reference.save_pretrained(tmp_path)
    driver = Driver(load_tiny(tmp_path, native=native))
    batch = build_batch([driver.sequence(prompt_of(60, seed)).chunk(60) for seed in range(30)])
    scored = driver.model.forward(batch, driver.kv)
    assert scored.finite
    assert scored.best.tolist() == [row.index(max(row)) for row in scored.logits.tolist()]
    assert 200 in scored.best and len(set(scored.best.tolist())) > 5


@pytest.mark.parametrize("native", [True, False], ids=["native", "torch"])
@pytest.mark.parametrize("broken", ["keys and values", "the last row's logits", "no"])
def test_what_is_no_number_is_told(broken: str, native: bool, tmp_path: Path) -> None:
    reference = save_tiny(tmp_path, tie_word_embeddings=False)
    with torch.no_grad():
        if broken == "keys and values":  # of a row that is not sampled
            reference.model.embed_tokens.weight[5] = float("nan")
        elif broken != "no":
            reference.lm_head.weight[210] = float("nan")
    reference.save_pretrained(tmp_path)
    driver = Driver(load_tiny(tmp_path, native=native))
    batch = build_batch([driver.sequence([7, 5, 9]).chunk(2), driver.sequence([8, 9]).chunk(2)])
    assert driver.model.forward(batch, driver.kv).finite == (broken == "no")


def test_only_rows_that_sample_get_logits(tmp_path: Path) -> None:
    save_tiny(tmp_path)
    driver = Driver(load_tiny(tmp_path))
    one, two = driver.sequence(prompt_of(40)), driver.sequence(prompt_of(33))
    logits = driver.forward([one.chunk(20), two.chunk(33)])
    assert logits.shape == (1, driver.model.config.vocab)
    assert driver.forward([one.chunk(10)]).shape == (0, driver.model.config.vocab)


def test_a_checkpoint_that_raises_stops_the_pass_and_the_step_can_run_again(
    tmp_path: Path,
) -> None:
    save_tiny(tmp_path)
    driver = Driver(load_tiny(tmp_path), num_blocks=64)
    batch = build_batch([driver.sequence(prompt_of(300)).chunk(300)])
    whole = driver.model.forward(batch, driver.kv).logits
    calls = 0

    def stop_at_the_second_layer() -> None:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        driver.model.forward(batch, driver.kv, stop_at_the_second_layer)
    assert calls == 2
    assert torch.equal(driver.model.forward(batch, driver.kv).logits, whole)
