"""Paged attention in torch's own operators: per sequence, its blocks gathered, then fused SDPA.

Query heads of a KV head ride as SDPA's head axis over a key that is expanded, not copied.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F

from services.modelserver.herd.kernels.paged_attention_ref import AttentionSpan


class PagedAttention:
    """One step's attention over one layer's paged KV (layout: engine/kv_cache.py)."""

    def __init__(self, spans: Sequence[AttentionSpan], scale: float, window: int = 0) -> None:
        """window: a position sees itself and the window - 1 before it; 0: all before it."""
        self._spans, self._scale, self._window = spans, scale, window

    def __call__(
        self, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor
    ) -> torch.Tensor:
        """query [T, heads, dim] float32 -> [T, heads, dim] float32."""
        out = torch.empty_like(query, memory_format=torch.contiguous_format)
        for span in self._spans:
            rows = slice(span.q_start, span.q_start + span.q_len)
            out[rows] = self._attend(span, query[rows], keys, values)
        return out

    def _attend(
        self, span: AttentionSpan, q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor
    ) -> torch.Tensor:
        k = keys[span.block_table].permute(1, 0, 3, 2).flatten(1, 2)[:, : span.context_len]
        v = values[span.block_table].transpose(0, 1).flatten(1, 2)[:, : span.context_len]
        kv_heads, context, dim = k.shape
        grouped = q.view(len(q), kv_heads, -1, dim).permute(1, 2, 0, 3)
        wide = (kv_heads, grouped.shape[1], context, dim)
        mixed = F.scaled_dot_product_attention(
            grouped,
            k.float()[:, None].expand(wide),
            v.float()[:, None].expand(wide),
            attn_mask=self._seen(span),
            scale=self._scale,
        )
        return mixed.permute(2, 0, 1, 3).reshape(q.shape)

    def _seen(self, span: AttentionSpan) -> torch.Tensor:
        """[q_len, context]: what each row sees."""
        position = torch.arange(span.context_len - span.q_len, span.context_len)[:, None]
        other = torch.arange(span.context_len)
        seen = other <= position
        return seen & (other > position - self._window) if self._window else seen
