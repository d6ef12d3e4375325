"""The paged KV pool: blocks of 32 tokens, and in each the heads one after another.

A block of a layer and a KV head is keys [dim, 32] and values [32, dim]: both products of attention
then read it in order. A token's slot is ``block * 32 + offset``. The pool knows nothing of
sequences; block tables come with each forward batch. Only the engine thread touches it.
"""

from __future__ import annotations

import math

import numpy as np
import torch

from libs.hashing import BLOCK_TOKENS
from services.modelserver.herd.kernels.arena import huge
from services.modelserver.herd.models.config import ModelConfig


def block_bytes(config: ModelConfig, dtype: torch.dtype = torch.float32) -> int:
    """Bytes of one block over all layers, keys and values."""
    return 2 * config.layers * BLOCK_TOKENS * config.kv_size * dtype.itemsize


def blocks_within(
    budget_bytes: int, config: ModelConfig, dtype: torch.dtype = torch.float32
) -> int:
    """How many blocks fit in ``budget_bytes``; ValueError when not even one does."""
    count = budget_bytes // block_bytes(config, dtype)
    if count < 1:
        raise ValueError(
            f"a KV budget of {budget_bytes} bytes is less than one block "
            f"({block_bytes(config, dtype)} bytes)"
        )
    return count


class KvCache:
    """Keys ``[layers, blocks, kv_heads, head_dim, 32]`` and values
    ``[layers, blocks, kv_heads, 32, head_dim]`` of ``num_blocks`` blocks.

    float32 keeps greedy output exact; float16 halves the bytes that attention reads.
    """

    def __init__(
        self, num_blocks: int, config: ModelConfig, dtype: torch.dtype = torch.float32
    ) -> None:
        if num_blocks < 1:
            raise ValueError(f"a KV pool needs at least one block, not {num_blocks}")
        self.num_blocks = num_blocks
        self.dtype = dtype
        self.block_bytes = block_bytes(config, dtype)
        self._config = config
        places = (config.layers, num_blocks, config.kv_heads)
        # Zeros, not empty: a slot beyond a context is masked, and 0 * NaN would still be NaN.
        self._keys = _zeros((*places, config.head_dim, BLOCK_TOKENS), dtype)
        self._values = _zeros((*places, BLOCK_TOKENS, config.head_dim), dtype)
        self.layers = tuple(zip(self._keys, self._values, strict=True))
        """Each layer's keys [blocks, kv_heads, head_dim, 32] and values
        [blocks, kv_heads, 32, head_dim]: views, not copies."""

    def write(
        self, layer: int, slots: torch.Tensor, keys: torch.Tensor, values: torch.Tensor
    ) -> None:
        """Store rows [T, kv_heads, head_dim] at ``slots`` [T]."""
        blocks, offsets = slots // BLOCK_TOKENS, slots % BLOCK_TOKENS
        own_keys, own_values = self.layers[layer]
        own_keys[blocks, :, :, offsets] = keys.to(self.dtype)
        own_values[blocks, :, offsets] = values.to(self.dtype)

    def is_finite(self, layer: int, slots: torch.Tensor) -> bool:
        """Whether the rows at ``slots`` [T] of a layer are all numbers."""
        blocks, offsets = slots // BLOCK_TOKENS, slots % BLOCK_TOKENS
        keys, values = self.layers[layer]
        rows = keys[blocks, :, :, offsets], values[blocks, :, offsets]
        return all(bool(each.isfinite().all()) for each in rows)

    def read_block(self, block: int) -> memoryview:
        """One contiguous copy of a block: keys of all layers, then values. ``block_bytes`` long."""
        at = self._checked(block)
        parts = self._keys[:, at], self._values[:, at]
        copied = torch.cat([part.reshape(-1) for part in parts])
        return copied.view(torch.uint8).numpy().data

    def write_block(self, block: int, payload: bytes | bytearray | memoryview) -> None:
        """Fill a block from what ``read_block`` gave, here or in a server of the same layout."""
        if len(payload) != self.block_bytes:
            raise ValueError(
                f"a KV block is {self.block_bytes} bytes, the payload has {len(payload)}"
            )
        flat = torch.from_numpy(np.frombuffer(payload, np.uint8).copy()).view(self.dtype)
        at = self._checked(block)
        for target, part in zip((self._keys, self._values), flat.chunk(2), strict=True):
            target[:, at] = part.view(target[:, at].shape)

    def layout_signature(self) -> str:
        """Equal signatures mean that block payloads may be exchanged."""
        config, dtype = self._config, str(self.dtype).removeprefix("torch.")
        return (
            f"kv2:layers={config.layers}:block={BLOCK_TOKENS}:heads={config.kv_heads}:"
            f"dim={config.head_dim}:{dtype}:head-major"
        )

    def _checked(self, block: int) -> int:
        if not 0 <= block < self.num_blocks:
            raise IndexError(f"block {block} is outside the pool of {self.num_blocks}")
        return block


def _zeros(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """A large pool costs what is used of it."""
    return huge(math.prod(shape) * dtype.itemsize).view(dtype).view(shape)
