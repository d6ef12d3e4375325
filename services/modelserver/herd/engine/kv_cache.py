"""The paged KV pool: one tensor, blocks of 32 tokens, token-major.

A token's slot is ``block * 32 + offset``. The pool knows nothing of sequences; block tables come
with each forward batch. Only the engine thread touches it.
"""

from __future__ import annotations

import math

import numpy as np
import torch

from libs.hashing import BLOCK_TOKENS
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
    """Keys and values of ``num_blocks`` blocks, ``[2, layers, blocks, 32, kv_heads, head_dim]``.

    float32 keeps greedy output exact; float16 and bfloat16 halve the bytes that decoding reads.
    """

    def __init__(
        self, num_blocks: int, config: ModelConfig, dtype: torch.dtype = torch.float32
    ) -> None:
        if num_blocks < 1:
            raise ValueError(f"a KV pool needs at least one block, not {num_blocks}")
        self.num_blocks = num_blocks
        self.dtype = dtype
        self.block_bytes = block_bytes(config, dtype)
        self._shape = (2, config.layers, num_blocks, BLOCK_TOKENS, config.kv_heads, config.head_dim)
        # Zeros, not empty: a slot beyond a context is masked, and 0 * NaN would still be NaN.
        self._pool = _untouched_zeros(math.prod(self._shape), dtype).view(self._shape)
        self._keys = [self._pool[0, layer] for layer in range(config.layers)]
        self._values = [self._pool[1, layer] for layer in range(config.layers)]
        self._slots = [
            (k.view(-1, *k.shape[2:]), v.view(-1, *v.shape[2:]))
            for k, v in zip(self._keys, self._values, strict=True)
        ]

    def layer(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        """One layer's (keys, values), each [blocks, 32, kv_heads, head_dim]: views, not copies."""
        return self._keys[index], self._values[index]

    def write(
        self, layer: int, slots: torch.Tensor, keys: torch.Tensor, values: torch.Tensor
    ) -> None:
        """Store rows [T, kv_heads, head_dim] at ``slots`` [T]."""
        key_slots, value_slots = self._slots[layer]
        key_slots.index_copy_(0, slots, keys.to(self.dtype))
        value_slots.index_copy_(0, slots, values.to(self.dtype))

    def is_finite(self, layer: int, slots: torch.Tensor) -> bool:
        """Whether the rows at ``slots`` [T] of a layer are all numbers."""
        return all(bool(pool[slots].isfinite().all()) for pool in self._slots[layer])

    def read_block(self, block: int) -> memoryview:
        """One contiguous copy of a block: keys of all layers, then values. ``block_bytes`` long."""
        copied = self._pool[:, :, self._checked(block)].contiguous()
        return copied.view(torch.uint8).view(-1).numpy().data

    def write_block(self, block: int, payload: bytes | bytearray | memoryview) -> None:
        """Fill a block from what ``read_block`` gave, here or in a server of the same layout."""
        if len(payload) != self.block_bytes:
            raise ValueError(
                f"a KV block is {self.block_bytes} bytes, the payload has {len(payload)}"
            )
        flat = torch.from_numpy(np.frombuffer(payload, np.uint8).copy()).view(self.dtype)
        target = self._pool[:, :, self._checked(block)]
        target.copy_(flat.view(target.shape))

    def layout_signature(self) -> str:
        """Equal signatures mean that block payloads may be exchanged."""
        _, layers, _, tokens, heads, dim = self._shape
        dtype = str(self.dtype).removeprefix("torch.")
        return f"kv1:layers={layers}:block={tokens}:heads={heads}:dim={dim}:{dtype}:token-major"

    def _checked(self, block: int) -> int:
        if not 0 <= block < self.num_blocks:
            raise IndexError(f"block {block} is outside the pool of {self.num_blocks}")
        return block


def _untouched_zeros(count: int, dtype: torch.dtype) -> torch.Tensor:
    """Zeros whose memory the system only gives when a page is first written (torch.zeros writes
    them all), so that a large pool costs what is used of it."""
    return torch.from_numpy(np.zeros(count * dtype.itemsize, np.uint8)).view(dtype)
