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
from services.modelserver.herd.engine.sampler import RowSampling, Sampled, sample
from services.modelserver.herd.models.config import ModelConfig


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
        the step may be run again, it only overwrites KV that it wrote itself.
        """
        if not chunks:
            return Sampled([], [])
        batch = build_batch(chunks)
        if len(sampling) != len(batch.sample_rows):
            raise ValueError(
                f"{len(batch.sample_rows)} chunks sample, {len(sampling)} rows of parameters came"
            )
        logits = self.model.forward(batch, self.kv, checkpoint)
        return sample(logits, sampling, self.model.config.eos_ids)
