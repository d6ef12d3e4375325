"""A decoder's pass by the compiled kernels: what serves."""

from __future__ import annotations

import ctypes

import torch

from services.modelserver.herd.engine.forward import Checkpoint, ForwardBatch, Scored, go_on
from services.modelserver.herd.engine.kv_cache import KvCache
from services.modelserver.herd.engine.precision import Precision
from services.modelserver.herd.kernels.arena import Arena
from services.modelserver.herd.kernels.packed import PackedMatrix
from services.modelserver.herd.kernels.stack import (
    HEAD_DIMS,
    MAX_FREQUENCIES,
    Pass,
    Stack,
    StackLayer,
    StackShape,
)
from services.modelserver.herd.models.decoder import Decoder, LayerWeights

_ROWS_BETWEEN_LOOKS = 512
"""Rows times layers, about, between two checkpoints: some hundredths of a second."""


def can_run(decoder: Decoder) -> bool:
    """Whether the kernels cover the model's shape."""
    return decoder.config.head_dim % HEAD_DIMS == 0 and len(decoder.frequencies) <= MAX_FREQUENCIES


class NativePass:
    """The weights, packed in the precision, and the pass over them; see models/decoder.py."""

    def __init__(
        self, library: ctypes.CDLL, decoder: Decoder, precision: Precision, threads: int
    ) -> None:
        self.config = config = decoder.config
        self.precision = precision
        arena = Arena()

        def packed(weight: torch.Tensor, **options: object) -> PackedMatrix:
            return PackedMatrix(library, weight, precision, threads, arena, **options)  # type: ignore[arg-type]

        head = decoder.embedding if decoder.head is None else decoder.head
        own_rows = decoder.head is None and precision != "int8"
        self._stack = Stack(
            library,
            StackShape(
                config.hidden,
                config.heads,
                config.kv_heads,
                config.head_dim,
                config.intermediate,
                config.vocab,
                decoder.activation,
                config.norm_eps,
                decoder.attention_scale,
                decoder.embedding_scale,
            ),
            [_pack(decoder.layer(index), packed) for index in range(config.layers)],
            decoder.norm,
            packed(head),
            None if own_rows else decoder.embedding.to(torch.float16),
            decoder.frequencies,
            threads,
        )

    def seconds(self) -> dict[str, float]:
        """Where the time of all passes so far went: see kernels/stack.py."""
        return self._stack.seconds()

    @torch.inference_mode()
    def forward(self, batch: ForwardBatch, kv: KvCache, checkpoint: Checkpoint = go_on) -> Scored:
        """Write the batch's KV and score its sample rows."""
        done = self._run(batch, kv, checkpoint, states=False)
        return Scored(done.result, done.best, done.finite)

    @torch.inference_mode()
    def states(
        self, batch: ForwardBatch, kv: KvCache, checkpoint: Checkpoint = go_on
    ) -> torch.Tensor:
        """As `forward`, but what the head is given: [S, hidden]."""
        return self._run(batch, kv, checkpoint, states=True).result

    def _run(
        self, batch: ForwardBatch, kv: KvCache, checkpoint: Checkpoint, *, states: bool
    ) -> Pass:
        own = self._stack.begin(batch, kv.layers, states=states)
        stride = max(1, _ROWS_BETWEEN_LOOKS // len(batch.tokens))
        for first in range(0, self.config.layers, stride):
            checkpoint()
            own.run(first, min(first + stride, self.config.layers))
        return own


def _pack(weights: LayerWeights, packed: object) -> StackLayer:
    assert callable(packed)
    return StackLayer(
        qkv=packed(weights.qkv, bias=weights.qkv_bias),
        attention_out=packed(weights.attention_out),
        gate_up=packed(weights.gate_up, gated=True),
        down=packed(weights.down),
        attention_norm=weights.attention_norm,
        mlp_norm=weights.mlp_norm,
        after_attention=weights.after_attention,
        after_mlp=weights.after_mlp,
        query_norm=weights.query_norm,
        key_norm=weights.key_norm,
        rope=weights.rope,
        window=weights.window,
    )
