"""The KV pool: blocks as bytes, and which pools may exchange them."""

from __future__ import annotations

import pytest
import torch

from services.modelserver.herd.engine.kv_cache import KvCache, block_bytes, blocks_within
from services.modelserver.herd.models.config import ModelConfig, RopeConfig

CONFIG = ModelConfig(
    architecture="llama",
    layers=3,
    hidden=32,
    heads=4,
    kv_heads=2,
    head_dim=8,
    intermediate=64,
    vocab=50,
    norm_eps=1e-5,
    rope=RopeConfig(),
    tied=True,
    max_context=128,
    eos_ids=(2,),
    bos_id=1,
)


def filled(dtype: torch.dtype = torch.float32) -> KvCache:
    """Every slot of a four-block pool holds something else."""
    kv = KvCache(4, CONFIG, dtype)
    slots = torch.arange(4 * 32)
    for layer in range(3):
        rows = torch.randn(2, 128, 2, 8, generator=torch.Generator().manual_seed(layer))
        kv.write(layer, slots, rows[0], rows[1])
    return kv


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_a_block_travels_as_bytes(dtype: torch.dtype) -> None:
    source, target = filled(dtype), KvCache(2, CONFIG, dtype)
    payload = source.read_block(3)
    assert len(payload) == source.block_bytes == block_bytes(CONFIG, dtype)
    target.write_block(1, payload)
    for layer in range(3):
        for ours, theirs in zip(target.layers[layer], source.layers[layer], strict=True):
            assert torch.equal(ours[1], theirs[3])
            assert not ours[0].any()
    assert target.read_block(1) == payload


def test_what_was_read_is_a_copy() -> None:
    kv = filled()
    payload = kv.read_block(0)
    before = bytes(payload)
    kv.write(0, torch.tensor([5]), torch.ones(1, 2, 8), torch.ones(1, 2, 8))
    assert payload == before
    assert kv.read_block(0) != before


def test_bytes_that_are_no_block_are_refused() -> None:
    kv = filled()
    with pytest.raises(ValueError, match=str(kv.block_bytes)):
        kv.write_block(0, b"\0" * (kv.block_bytes - 1))


@pytest.mark.parametrize("block", [-1, 4])
def test_a_block_outside_the_pool_is_refused(block: int) -> None:
    with pytest.raises(IndexError, match=str(block)):
        filled().read_block(block)


def test_signatures_agree_exactly_where_blocks_may_be_exchanged() -> None:
    assert KvCache(1, CONFIG).layout_signature() == KvCache(9, CONFIG).layout_signature()
    assert filled().layout_signature() != filled(torch.float16).layout_signature()


def test_a_budget_becomes_blocks() -> None:
    size = block_bytes(CONFIG)
    assert size == 2 * 3 * 32 * 2 * 8 * 4
    assert blocks_within(3 * size + 1, CONFIG) == 3
    with pytest.raises(ValueError, match=str(size)):
        blocks_within(size - 1, CONFIG)
