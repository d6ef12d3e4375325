"""The plain formula of paged attention, one query at a time: what the kernels must equal.

    out[t, h] = sum_j softmax_j(scale * q[t, h] . k[j, h // group]) v[j, h // group]

over positions j = 0 .. position of t, or the last `window` of them; group = heads / kv_heads.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch


class AttentionSpan(Protocol):
    """The fields of a batch's span that attention reads (see engine/forward.py)."""

    @property
    def q_start(self) -> int: ...
    @property
    def q_len(self) -> int: ...
    @property
    def context_len(self) -> int: ...
    @property
    def block_table(self) -> torch.Tensor: ...


def paged_attention_ref(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    spans: Sequence[AttentionSpan],
    scale: float,
    window: int = 0,
) -> torch.Tensor:
    """query [T, heads, dim]; keys [blocks, kv_heads, dim, block], values [blocks, kv_heads, block,
    dim] -> [T, heads, dim]. Sums in float64, result in the query's dtype."""
    out = torch.zeros_like(query)
    group = query.shape[1] // keys.shape[1]
    for span in spans:
        k = keys[span.block_table].permute(0, 3, 1, 2).flatten(0, 1).double()
        v = values[span.block_table].transpose(1, 2).flatten(0, 1).double()
        k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
        for row in range(span.q_len):
            end = span.context_len - span.q_len + row + 1
            seen = slice(max(0, end - window) if window else 0, end)
            q = query[span.q_start + row].double()
            scores = torch.einsum("hd,jhd->hj", q, k[seen]) * scale
            mixed = torch.einsum("hj,jhd->hd", scores.softmax(dim=-1), v[seen])
            out[span.q_start + row] = mixed.to(query.dtype)
    return out
