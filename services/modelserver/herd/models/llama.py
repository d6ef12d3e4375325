"""The Llama family: one pass over a ForwardBatch, readable from top to bottom.

    x = embed[tokens]
    per layer:  x += o_proj(attention(rope(qkv_proj(norm(x)))));  x += down(silu(gate) * up)
    logits = head(norm(x[sample_rows]))

q, k, v are one matrix and gate, up another: fewer, larger products.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from services.modelserver.herd.engine.forward import Checkpoint, ForwardBatch, go_on
from services.modelserver.herd.engine.kv_cache import KvCache
from services.modelserver.herd.engine.precision import Linear, Precision, make_linear
from services.modelserver.herd.kernels.paged_attention_cpu import PagedAttention
from services.modelserver.herd.kernels.rope import apply_rope, inverse_frequencies, rope_tables
from services.modelserver.herd.models.config import ModelConfig

Fetch = Callable[[str], torch.Tensor]
"""Gives the float32 tensor of a canonical name (see models/source.py)."""


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer's weights. The norms are [hidden] float32."""

    attention_norm: torch.Tensor
    qkv: Linear
    attention_out: Linear
    mlp_norm: torch.Tensor
    gate_up: Linear
    down: Linear


class LlamaModel:
    """Weights and the pass over them. It owns no state between steps; KV is the caller's."""

    def __init__(self, config: ModelConfig, fetch: Fetch, precision: Precision) -> None:
        self.config = config
        self.precision = precision
        self._embedding = fetch("model.embed_tokens.weight")
        self._layers = [_load_layer(i, fetch, precision) for i in range(config.layers)]
        self._norm = fetch("model.norm.weight")
        head = self._embedding if config.tied else fetch("lm_head.weight")
        self._head = make_linear(head, precision)
        self._inv_freq = inverse_frequencies(config.rope, config.head_dim)

    @torch.inference_mode()
    def forward(
        self, batch: ForwardBatch, kv: KvCache, checkpoint: Checkpoint = go_on
    ) -> torch.Tensor:
        """Write the batch's KV and give float32 logits [S, vocab], one row per sample row."""
        x = F.embedding(batch.tokens, self._embedding)
        rope = rope_tables(batch.positions, self._inv_freq)
        attend = PagedAttention(batch.spans, kv.layer(0)[0], self.config.heads)
        last = self.config.layers - 1
        for index, layer in enumerate(self._layers):
            checkpoint()
            attended = self._attention(index, layer, x, rope, attend, batch, kv)
            if index == last:  # beyond the last attention only sampled rows matter
                x, attended = x[batch.sample_rows], attended[batch.sample_rows]
            x = x + layer.attention_out(attended)
            x = x + self._mlp(layer, x)
        return self._head(self._rms(x, self._norm))

    def _attention(
        self,
        index: int,
        layer: Layer,
        x: torch.Tensor,
        rope: tuple[torch.Tensor, torch.Tensor],
        attend: PagedAttention,
        batch: ForwardBatch,
        kv: KvCache,
    ) -> torch.Tensor:
        heads, kv_heads = self.config.heads, self.config.kv_heads
        qkv = layer.qkv(self._rms(x, layer.attention_norm))
        qkv = qkv.view(len(x), heads + 2 * kv_heads, self.config.head_dim)
        rotated = apply_rope(qkv[:, : heads + kv_heads], *rope)
        kv.write(index, batch.slots, rotated[:, heads:], qkv[:, heads + kv_heads :])
        return attend(rotated[:, :heads], *kv.layer(index)).view(len(x), self.config.q_size)

    def _mlp(self, layer: Layer, x: torch.Tensor) -> torch.Tensor:
        gate, up = layer.gate_up(self._rms(x, layer.mlp_norm)).chunk(2, dim=-1)
        return layer.down(F.silu(gate).mul_(up))

    def _rms(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(x, (self.config.hidden,), weight, self.config.norm_eps)


def _load_layer(index: int, fetch: Fetch, precision: Precision) -> Layer:
    def get(part: str) -> torch.Tensor:
        return fetch(f"model.layers.{index}.{part}.weight")

    def linear(*parts: str) -> Linear:
        return make_linear(torch.cat([get(part) for part in parts]), precision)

    return Layer(
        attention_norm=get("input_layernorm"),
        qkv=linear("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
        attention_out=linear("self_attn.o_proj"),
        mlp_norm=get("post_attention_layernorm"),
        gate_up=linear("mlp.gate_proj", "mlp.up_proj"),
        down=linear("mlp.down_proj"),
    )
