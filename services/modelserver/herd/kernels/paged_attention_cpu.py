"""Paged attention on the CPU.

Decoding rows go through the C++ kernel where it could be built. Everything else, and decoding
without it, through torch's own operators, per sequence: ``index_select`` of its blocks into a
scratch that is reused, then fused SDPA. Query heads of a KV head ride as SDPA's head axis over a
key that is expanded, not copied.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F

from services.modelserver.herd.kernels.paged_attention_ref import AttentionSpan
from services.modelserver.herd.kernels.paged_decode_native import native_decode


class PagedAttention:
    """One step's attention over paged KV; made once a batch, called once a layer.

    What depends only on the spans (causal masks, scratch) is prepared here.
    """

    def __init__(
        self,
        spans: Sequence[AttentionSpan],
        keys: torch.Tensor,
        heads: int,
        *,
        native: bool = True,
    ) -> None:
        """``keys`` is any layer's pool [blocks, block, kv_heads, dim], for its shape and dtype.

        ``native=False`` keeps to torch's operators.
        """
        decoding = [span for span in spans if span.q_len == 1]
        self._native = native_decode(decoding, keys, heads) if native else None
        self._spans = [span for span in spans if span.q_len > 1] if self._native else list(spans)
        self._masks = [_causal_mask(span) for span in self._spans]
        most = max((len(span.block_table) for span in self._spans), default=0)
        self._keys = keys.new_empty((most, *keys.shape[1:]))
        self._values = torch.empty_like(self._keys)

    def __call__(
        self, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor
    ) -> torch.Tensor:
        """query [T, heads, dim] float32 over one layer's pools -> [T, heads, dim] float32."""
        out = torch.empty_like(query, memory_format=torch.contiguous_format)
        if self._native is not None:
            self._native(query, keys, values, out)
        for span, mask in zip(self._spans, self._masks, strict=True):
            k = _gather(keys, span, self._keys)
            v = _gather(values, span, self._values)
            rows = slice(span.q_start, span.q_start + span.q_len)
            attend = _decode if span.q_len == 1 else _extend
            attend(query[rows], k, v, mask, out[rows])
        return out


def _gather(pool: torch.Tensor, span: AttentionSpan, scratch: torch.Tensor) -> torch.Tensor:
    """The span's context as [kv_heads, context, dim] float32, valid until the next gather."""
    target = scratch[: len(span.block_table)]
    torch.index_select(pool, 0, span.block_table, out=target)
    return target.flatten(0, 1)[: span.context_len].transpose(0, 1).float()


def _decode(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None, out: torch.Tensor
) -> None:
    """One token sees all of its context: the heads of a group become query rows."""
    kv_heads, _, dim = k.shape
    grouped = q.view(1, kv_heads, -1, dim)
    mixed = F.scaled_dot_product_attention(grouped, k[None], v[None])
    out.copy_(mixed.view(out.shape))


def _extend(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None, out: torch.Tensor
) -> None:
    """A chunk behind a prefix; ``mask`` is None when there is no prefix."""
    kv_heads, context, dim = k.shape
    grouped = q.view(len(q), kv_heads, -1, dim).permute(1, 2, 0, 3)
    wide = (kv_heads, grouped.shape[1], context, dim)
    mixed = F.scaled_dot_product_attention(
        grouped,
        k[:, None].expand(wide),
        v[:, None].expand(wide),
        attn_mask=mask,
        is_causal=mask is None,
    )
    out.view(len(q), kv_heads, -1, dim).copy_(mixed.permute(2, 0, 1, 3))


def _causal_mask(span: AttentionSpan) -> torch.Tensor | None:
    """[q_len, context] additive; None where SDPA needs none or has its own (no prefix)."""
    prefix = span.context_len - span.q_len
    if span.q_len == 1 or prefix == 0:
        return None
    hidden = torch.full((span.q_len, span.context_len), float("-inf"))
    return hidden.triu_(diagonal=prefix + 1)
