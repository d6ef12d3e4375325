"""Runner: one engine step on the device, from planned chunks to sampled tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch

from services.modelserver.herd.engine.forward import (
    Checkpoint,
    ChunkLike,
    ForwardBatch,
    build_batch,
    go_on,
)
from services.modelserver.herd.engine.kv_cache import KvCache
from services.modelserver.herd.engine.sampled import RowSampling, Sampled
from services.modelserver.herd.engine.sampler import sample
from services.modelserver.herd.models.config import ModelConfig


class NotFinite(ArithmeticError):
    """Some logits or keys and values of the step are no numbers."""


class Model(Protocol):
    """What a runner needs of a model (see models/llama.py)."""

    config: ModelConfig

    def forward(
        self, batch: ForwardBatch, kv: KvCache, checkpoint: Checkpoint = ...
    ) -> torch.Tensor: ...


class Runner:
    """A model and the KV pool it writes. Called by the engine thread only, one step at a time."""

    def __init__(self, model: Model, kv: KvCache) -> None:
        self.model = model
        self.kv = kv

    def step(
        self,
        chunks: Sequence[ChunkLike],
        sampling: Sequence[RowSampling],
        checkpoint: Checkpoint = go_on,
    ) -> Sampled:
        """Feed the chunks and sample after those with ``sample`` set.

        ``sampling`` has one entry for each such chunk, in the order of ``chunks``; so has the
        result. No chunks at all give an empty result. What ``checkpoint`` raises passes through:
        the step may be run again, it only overwrites KV that it wrote itself. The same goes for
        NotFinite: a row without numbers has nothing to sample from, and its KV must name no block.
        """
        if not chunks:
            return Sampled([], [])
        batch = build_batch(chunks)
        if len(sampling) != len(batch.sample_rows):
            raise ValueError(
                f"{len(batch.sample_rows)} chunks sample, {len(sampling)} rows of parameters came"
            )
        logits = self.model.forward(batch, self.kv, checkpoint)
        self._check(batch, logits)
        return sample(logits, sampling, self.model.config.eos_ids)

    def _check(self, batch: ForwardBatch, logits: torch.Tensor) -> None:
        """What is no number stays none from layer to layer, so the last layer's KV tells of all
        tokens, sampled or not. A logit of -inf is one that is never drawn, unless all are."""
        if not self.kv.is_finite(self.model.config.layers - 1, batch.slots):
            raise NotFinite("keys or values are not finite")
        if not bool(logits.amax(dim=-1).isfinite().all()):
            raise NotFinite("logits are not finite")
