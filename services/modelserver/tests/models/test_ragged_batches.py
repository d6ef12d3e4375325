"""However a sequence is cut into chunks, whatever else is in the batch: its output is its own."""

from __future__ import annotations

import pytest
import torch
from transformers import LlamaForCausalLM

from services.modelserver.herd.engine.forward import build_batch
from services.modelserver.herd.engine.native_pass import NativePass
from services.modelserver.tests.models.factories import (
    Driver,
    TokenChunk,
    assert_greedy_equal,
    load_tiny,
    prompt_of,
    reference_greedy,
    save_tiny,
)

BORDERS = (31, 32, 33, 63, 64, 65)


def assert_near(ours: torch.Tensor, theirs: torch.Tensor) -> None:
    torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> LlamaForCausalLM:
    return save_tiny(tmp_path_factory.mktemp("tiny"), seed=3)


@pytest.fixture(scope="module")
def model(reference: LlamaForCausalLM, tmp_path_factory: pytest.TempPathFactory) -> NativePass:
    folder = tmp_path_factory.mktemp("tiny_again")
    reference.save_pretrained(folder)
    model = load_tiny(folder)
    assert isinstance(model, NativePass)
    return model


@pytest.mark.parametrize("border", BORDERS)
def test_a_chunk_border_changes_nothing(border: int, model: NativePass) -> None:
    driver = Driver(model)
    prompt = prompt_of(130)
    whole = driver.forward([driver.sequence(prompt).chunk(130)])
    cut = driver.sequence(prompt)
    assert len(driver.forward([cut.chunk(border)])) == 0
    assert_near(driver.forward([cut.chunk(130 - border)]), whole)


@pytest.mark.parametrize("length", BORDERS)
def test_decoding_across_a_block_border_equals_the_reference(
    length: int, model: NativePass, reference: LlamaForCausalLM
) -> None:
    driver = Driver(model)
    prompt = prompt_of(length)
    theirs, gaps = reference_greedy(reference, prompt, 36)
    assert_greedy_equal(driver.greedy(driver.sequence(prompt, room=36), 36, 7), theirs, gaps)


@pytest.mark.parametrize("hit_blocks", [1, 2])
def test_a_prefix_in_shared_blocks_is_as_good_as_its_own(
    hit_blocks: int, model: NativePass, reference: LlamaForCausalLM
) -> None:
    driver = Driver(model)
    first = driver.sequence(prompt_of(90))
    driver.forward([first.chunk(90)])
    shared = first.tokens[: 32 * hit_blocks]
    prompt = shared + prompt_of(20, seed=5)
    second = driver.sequence(prompt, room=20)
    second.block_table[:hit_blocks] = first.block_table[:hit_blocks]
    second.done = len(shared)
    theirs, gaps = reference_greedy(reference, prompt, 20)
    assert_greedy_equal(driver.greedy(second, 20), theirs, gaps)


def test_prefill_chunks_and_decodes_mix_in_one_batch(
    model: NativePass, reference: LlamaForCausalLM
) -> None:
    """Sixteen sequences join one step apart, are prefilled in uneven chunks and decode together."""
    driver = Driver(model, num_blocks=128)
    prompts = [prompt_of(5 + 11 * i, seed=i) for i in range(16)]
    sequences = [driver.sequence(p, room=12) for p in prompts]
    step = 0
    while any(len(s.tokens) < len(p) + 12 for s, p in zip(sequences, prompts, strict=True)):
        chunks, sampling = [], []
        for i, sequence in enumerate(sequences[: step + 1]):
            if len(sequence.tokens) == len(prompts[i]) + 12:
                continue
            left = len(sequence.tokens) - sequence.done
            chunks.append(sequence.chunk(min(left, 13 + i)))
            if chunks[-1].sample:
                sampling.append(sequence)
        for sequence, row in zip(sampling, driver.forward(chunks), strict=True):
            sequence.tokens.append(int(row.argmax()))
        step += 1
    for prompt, sequence in zip(prompts, sequences, strict=True):
        theirs, gaps = reference_greedy(reference, prompt, 12)
        assert_greedy_equal(sequence.tokens[len(prompt) :], theirs, gaps)


def test_blocks_moved_out_and_back_elsewhere_decode_the_same(model: NativePass) -> None:
    driver = Driver(model)
    sequence = driver.sequence(prompt_of(80), room=1)
    first = driver.forward([sequence.chunk(80)])
    sequence.tokens.append(int(first[0].argmax()))
    stayed = driver.forward([TokenChunk(sequence.tokens[80:], 80, sequence.block_table, True)])
    moved = driver.sequence(sequence.tokens)
    for old, new in zip(sequence.block_table, moved.block_table, strict=True):
        driver.kv.write_block(new, bytes(driver.kv.read_block(old)))
    moved.done = 80
    assert torch.equal(driver.forward([moved.chunk(1)]), stayed)


class TestBuildBatch:
    def test_lays_chunks_one_after_another(self) -> None:
        batch = build_batch(
            [TokenChunk([7, 8, 9], 31, [4, 2], True), TokenChunk([5], 0, [9], False)]
        )
        assert batch.tokens.tolist() == [7, 8, 9, 5]
        assert batch.positions.tolist() == [31, 32, 33, 0]
        assert batch.slots.tolist() == [4 * 32 + 31, 2 * 32, 2 * 32 + 1, 9 * 32]
        assert batch.sample_rows.tolist() == [2]
        assert [(s.q_start, s.q_len, s.context_len) for s in batch.spans] == [(0, 3, 34), (3, 1, 1)]

    def test_drops_blocks_beyond_the_context(self) -> None:
        (span,) = build_batch([TokenChunk([1], 31, [6, 7, 8], True)]).spans
        assert span.block_table.tolist() == [6]

    @pytest.mark.parametrize(
        "chunks",
        [
            [],
            [TokenChunk([], 0, [1], True)],
            [TokenChunk([1], -1, [1], True)],
            [TokenChunk([1, 2], 31, [1], True)],
        ],
        ids=["no chunks", "an empty chunk", "a negative start", "a table too short"],
    )
    def test_refuses(self, chunks: list[TokenChunk]) -> None:
        with pytest.raises(ValueError):
            build_batch(chunks)
