"""ModelConfig: the numbers of a model, whichever family and file format they came from."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from services.modelserver.herd.kernels.rope import RopeConfig as RopeConfig
from services.modelserver.herd.models.errors import BadWeights


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Shapes and constants. Sizes are counts of elements; ids are token ids of the vocabulary."""

    architecture: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    norm_eps: float
    rope: RopeConfig
    tied: bool
    max_context: int
    eos_ids: tuple[int, ...]
    bos_id: int | None
    windows: tuple[int, ...] = ()
    """Of each layer: a position sees itself and the window - 1 before it; 0: all before it. Empty:
    no layer has one."""
    local_rope: RopeConfig | None = None
    """Of the layers with a window, where it is another."""
    query_scale: float = 0.0
    """Of attention scores; 0: one over the root of head_dim."""

    def __post_init__(self) -> None:
        for name in ("layers", "hidden", "heads", "kv_heads", "head_dim", "intermediate", "vocab"):
            if getattr(self, name) < 1:
                raise BadWeights(f"the model's config gives {name}={getattr(self, name)}")
        if self.heads % self.kv_heads:
            raise BadWeights(
                f"{self.heads} attention heads do not divide among {self.kv_heads} KV heads"
            )
        if self.windows and len(self.windows) != self.layers:
            raise BadWeights(f"{self.layers} layers do not have {len(self.windows)} windows")
        if self.head_dim % 2:
            raise BadWeights(f"rotary embedding needs an even head_dim, not {self.head_dim}")

    @property
    def q_size(self) -> int:
        """Width of the concatenated query heads."""
        return self.heads * self.head_dim

    @property
    def kv_size(self) -> int:
        """Width of the concatenated key (or value) heads."""
        return self.kv_heads * self.head_dim

    @property
    def attention_scale(self) -> float:
        return self.query_scale or self.head_dim**-0.5

    def window(self, layer: int) -> int:
        return self.windows[layer] if self.windows else 0

    def canonical_json(self) -> bytes:
        """The same bytes for the same config, for digests."""
        return json.dumps(asdict(self), sort_keys=True, separators=(",", ":")).encode()
