"""The plain formula of paged attention, one query at a time: what the kernels must equal.

    out[t, h] = sum_j softmax_j(q[t, h] . k[j, h // group] / sqrt(dim)) v[j, h // group]

over positions j = 0 .. position of t, group = heads / kv_heads.
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
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, spans: Sequence[AttentionSpan]
) -> torch.Tensor:
    """query [T, heads, dim]; keys, values [blocks, block, kv_heads, dim] -> [T, heads, dim].

    Sums in float64, result in the query's dtype.
    """
    out = torch.zeros_like(query)
    group = query.shape[1] // keys.shape[2]
    for span in spans:
        k = _gather(keys, span).repeat_interleave(group, dim=1)
        v = _gather(values, span).repeat_interleave(group, dim=1)
        for row in range(span.q_len):
            seen = span.context_len - span.q_len + row + 1
            q = query[span.q_start + row].double()
            scores = torch.einsum("hd,jhd->hj", q, k[:seen]) / q.shape[-1] ** 0.5
            mixed = torch.einsum("hj,jhd->hd", scores.softmax(dim=-1), v[:seen])
            out[span.q_start + row] = mixed.to(query.dtype)
    return out


def _gather(pool: torch.Tensor, span: AttentionSpan) -> torch.Tensor:
    return pool[span.block_table].flatten(0, 1)[: span.context_len].double()
