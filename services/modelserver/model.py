"""A model as the server around it sees it: ready to run, whatever computes it.

The seam between the server (no torch) and what loads weights: `torch_model.py` is the real one,
`testing.py` one that computes nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from services.modelserver.config import ModelServerConfig
from services.modelserver.herd.engine.engine import BlockStore, StepRunner
from services.modelserver.herd.models.digest import ModelDigests


class KvPool(BlockStore, Protocol):
    """The paged pool that a runner computes in."""

    num_blocks: int
    block_bytes: int

    def layout_signature(self) -> str:
        """Equal signatures mean that block payloads may be exchanged."""
        ...


@dataclass(frozen=True, slots=True)
class ServedModel:
    """precision and numerics name how it is computed; two servers whose `digests.root`, numerics
    and pool layout agree may share KV. max_context: tokens that the model itself takes."""

    vocab: int
    max_context: int
    eos_ids: frozenset[int]
    precision: str
    numerics: str
    digests: ModelDigests
    pool: KvPool
    runner: StepRunner


Load = Callable[[ModelServerConfig], ServedModel]
"""Blocking; raises StartupError, or ModelError, whose sentence is shown."""
