"""Runner: one engine step on the device, from planned chunks to sampled tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from services.modelserver.herd.engine.forward import (
    Checkpoint,
    ChunkLike,
    ForwardBatch,
    Scored,
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
    """What a runner needs of a model (see models/decoder.py)."""

    config: ModelConfig

    def forward(self, batch: ForwardBatch, kv: KvCache, checkpoint: Checkpoint = ...) -> Scored: ...


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
        scored = self.model.forward(batch, self.kv, checkpoint)
        if not scored.finite:
            raise NotFinite("logits, keys or values are not finite")
        return sample(scored.logits, sampling, self.model.config.eos_ids, scored.best)
