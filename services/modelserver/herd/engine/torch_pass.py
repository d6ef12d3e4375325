"""A decoder's pass in torch's own operators: the formula that the compiled one is tested against,
and what serves where there is no compiler or the kernels do not cover a model's shape."""

from __future__ import annotations

from dataclasses import replace

import torch
import torch.nn.functional as F

from services.modelserver.herd.engine.forward import Checkpoint, ForwardBatch, Scored, go_on
from services.modelserver.herd.engine.kv_cache import KvCache
from services.modelserver.herd.engine.precision import Precision, round_rows, round_weight
from services.modelserver.herd.kernels.paged_attention_torch import PagedAttention
from services.modelserver.herd.kernels.rope import apply_rope, rope_tables
from services.modelserver.herd.models.decoder import Decoder, LayerWeights


class TorchPass:
    """The weights, rounded as the precision has them but kept in float32; see models/decoder.py."""

    def __init__(self, decoder: Decoder, precision: Precision) -> None:
        self.config = decoder.config
        self.precision = precision
        self._decoder = decoder
        self._layers = [
            _rounded(decoder.layer(index), precision) for index in range(self.config.layers)
        ]
        embedding = decoder.embedding
        self._head = round_weight(embedding if decoder.head is None else decoder.head, precision)
        float32 = precision == "float32"
        self._embedding = embedding if float32 else round_weight(embedding, "float16")

    @torch.inference_mode()
    def forward(self, batch: ForwardBatch, kv: KvCache, checkpoint: Checkpoint = go_on) -> Scored:
        """Write the batch's KV and score its sample rows."""
        logits = self._times(self.states(batch, kv, checkpoint), self._head)
        # What is no number stays none from layer to layer: the last one tells of all.
        finite = kv.is_finite(self.config.layers - 1, batch.slots)
        return Scored(
            logits, logits.argmax(dim=-1), finite and bool(logits.amax(dim=-1).isfinite().all())
        )

    @torch.inference_mode()
    def states(
        self, batch: ForwardBatch, kv: KvCache, checkpoint: Checkpoint = go_on
    ) -> torch.Tensor:
        """As `forward`, but what the head is given: [S, hidden]."""
        x = F.embedding(batch.tokens, self._embedding) * self._decoder.embedding_scale
        ropes = [rope_tables(batch.positions, each) for each in self._decoder.frequencies]
        last = self.config.layers - 1
        for index, layer in enumerate(self._layers):
            checkpoint()
            attended = self._attend(index, layer, x, ropes[layer.rope], batch, kv)
            if index == last:  # beyond the last attention only sampled rows matter
                x, attended = x[batch.sample_rows], attended[batch.sample_rows]
            x = x + self._rms(self._times(attended, layer.attention_out), layer.after_attention)
            x = x + self._rms(self._mlp(layer, x), layer.after_mlp)
        return self._rms(x, self._decoder.norm)

    def _attend(
        self,
        index: int,
        layer: LayerWeights,
        x: torch.Tensor,
        rope: tuple[torch.Tensor, torch.Tensor],
        batch: ForwardBatch,
        kv: KvCache,
    ) -> torch.Tensor:
        heads, kv_heads, dim = self.config.heads, self.config.kv_heads, self.config.head_dim
        qkv = self._times(self._rms(x, layer.attention_norm), layer.qkv, layer.qkv_bias)
        query, key, value = qkv.view(len(x), -1, dim).split((heads, kv_heads, kv_heads), dim=1)
        query = apply_rope(self._rms(query, layer.query_norm), *rope)
        key = apply_rope(self._rms(key, layer.key_norm), *rope)
        kv.write(index, batch.slots, key, value)
        attention = PagedAttention(batch.spans, self._decoder.attention_scale, layer.window)
        return attention(query, *kv.layers[index]).view(len(x), self.config.q_size)

    def _mlp(self, layer: LayerWeights, x: torch.Tensor) -> torch.Tensor:
        gate, up = self._times(self._rms(x, layer.mlp_norm), layer.gate_up).chunk(2, dim=-1)
        act = (
            F.silu(gate) if self._decoder.activation == "silu" else F.gelu(gate, approximate="tanh")
        )
        return self._times(act * up, layer.down)

    def _times(
        self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
    ) -> torch.Tensor:
        return F.linear(round_rows(x, self.precision), weight, bias)

    def _rms(self, x: torch.Tensor, weight: torch.Tensor | None) -> torch.Tensor:
        return x if weight is None else F.rms_norm(x, weight.shape, weight, self.config.norm_eps)


def _rounded(layer: LayerWeights, precision: Precision) -> LayerWeights:
    return replace(
        layer,
        qkv=round_weight(layer.qkv, precision),
        attention_out=round_weight(layer.attention_out, precision),
        gate_up=round_weight(layer.gate_up, precision),
        down=round_weight(layer.down, precision),
    )
