"""The host side of cpp/paged_decode.cpp: checks layouts, passes pointers."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import torch

from services.modelserver.herd.kernels.native import native_library
from services.modelserver.herd.kernels.paged_attention_ref import AttentionSpan

MAX_BLOCK = 64
MAX_GROUP = 16
MAX_HEADS = 256


class NativeDecode:
    """Decode attention of a step's one-token spans; made once a batch, called once a layer."""

    def __init__(self, library: ctypes.CDLL, spans: Sequence[AttentionSpan]) -> None:
        self._decode = library.herd_paged_decode
        self._batch = len(spans)
        lengths = torch.tensor([0] + [len(span.block_table) for span in spans[:-1]])
        self._tables = torch.cat([span.block_table for span in spans])
        self._starts = lengths.cumsum(0)
        self._contexts = torch.tensor([span.context_len for span in spans])
        self._rows = torch.tensor([span.q_start for span in spans])

    def __call__(
        self, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, out: torch.Tensor
    ) -> None:
        """query [T, heads, dim] (rows may be strided), pools of one layer; writes out's rows."""
        _, heads, dim = query.shape
        _, block, kv_heads, _ = keys.shape
        assert query.stride()[1:] == (dim, 1)
        assert keys.is_contiguous() and values.is_contiguous() and out.is_contiguous()
        self._decode(
            query.data_ptr(),
            query.stride(0),
            keys.data_ptr(),
            values.data_ptr(),
            self._tables.data_ptr(),
            self._starts.data_ptr(),
            self._contexts.data_ptr(),
            self._rows.data_ptr(),
            out.data_ptr(),
            self._batch,
            heads,
            kv_heads,
            dim,
            block,
            dim**-0.5,
            torch.get_num_threads(),
        )


def native_decode(
    spans: Sequence[AttentionSpan], keys: torch.Tensor, heads: int
) -> NativeDecode | None:
    """A NativeDecode for these spans; None where the kernel is missing or does not cover them."""
    library = native_library()
    _, block, kv_heads, _ = keys.shape
    covered = block <= MAX_BLOCK and heads <= MAX_HEADS and heads // kv_heads <= MAX_GROUP
    covered = covered and keys.dtype == torch.float32
    if library is None or not covered or not spans:
        return None
    return NativeDecode(library, spans)
