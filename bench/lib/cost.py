"""Bytes and FLOPs that a Llama-like pass cannot do without. Pure arithmetic of the shapes.

Embedding, norms, rotary embedding and the sampler are left out: together below 1 %.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

WEIGHT_BYTES = {"float32": 4, "float16": 2, "int8": 1.125}
"""With the scale of every 32 weights in int8."""


class Shapes(Protocol):
    """The fields of a model's config that cost depends on."""

    @property
    def layers(self) -> int: ...
    @property
    def hidden(self) -> int: ...
    @property
    def q_size(self) -> int: ...
    @property
    def kv_size(self) -> int: ...
    @property
    def intermediate(self) -> int: ...
    @property
    def vocab(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Work:
    """What a pass must read from memory and compute."""

    read_bytes: float
    flops: float

    def floor_s(self, bytes_per_s: float, flops_per_s: float) -> float:
        """Least seconds where reading and computing overlap perfectly."""
        return max(self.read_bytes / bytes_per_s, self.flops / flops_per_s)


def layer_weights(shapes: Shapes) -> int:
    """Weights of one layer's matrices."""
    return shapes.hidden * (2 * shapes.q_size + 2 * shapes.kv_size + 3 * shapes.intermediate)


def weight_bytes(shapes: Shapes, precision: str) -> float:
    """All layers and the head, as the precision packs them."""
    count = shapes.layers * layer_weights(shapes) + shapes.hidden * shapes.vocab
    return count * WEIGHT_BYTES[precision]


def decode_work(shapes: Shapes, precision: str, batch: int, context: int, kv_itemsize: int) -> Work:
    """One decode step: every weight and every sequence's keys and values are read once."""
    kv = batch * context * 2 * shapes.kv_size * shapes.layers * kv_itemsize
    weights = shapes.layers * layer_weights(shapes) + shapes.hidden * shapes.vocab
    attention = 4 * context * shapes.q_size * shapes.layers
    return Work(weight_bytes(shapes, precision) + kv, batch * (2 * weights + attention))


def prefill_work(shapes: Shapes, precision: str, tokens: int, chunk: int) -> Work:
    """A prompt of `tokens`, fed `chunk` at a time, one token sampled at its end.

    Attention is causal. Beyond the last layer's attention only the sampled row is needed.
    """
    after = shapes.hidden * (shapes.q_size + 3 * shapes.intermediate)
    linear = tokens * (shapes.layers * layer_weights(shapes) - after) + after
    attention = 2 * tokens * (tokens + 1) * shapes.q_size * shapes.layers
    passes = -(-tokens // chunk)
    return Work(
        passes * weight_bytes(shapes, precision),
        2 * (linear + shapes.hidden * shapes.vocab) + attention,
    )
