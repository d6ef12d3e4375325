"""Rotary position embedding, in the halves-apart form of Hugging Face's Llama.

For a pair (x1, x2) = (x[i], x[i + dim/2]) at position p:  (x1 cos - x2 sin, x2 cos + x1 sin) with
angle p * inv_freq[i].
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Rotary embedding. ``kind`` says which of the other fields count.

    default: theta alone. linear: positions divided by ``factor``. llama3: Llama 3.1's
    frequency-dependent stretch. factors: each frequency divided by its own number (how GGUF
    files store llama3), one per pair of dimensions.
    """

    theta: float = 10_000.0
    kind: str = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_context: int = 8192
    factors: tuple[float, ...] = ()


def inverse_frequencies(rope: RopeConfig, head_dim: int) -> torch.Tensor:
    """[head_dim / 2] float32. llama3 follows Llama 3.1's published scaling of low frequencies."""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
    base = 1.0 / (rope.theta**exponents)
    if rope.kind == "linear":
        return base / rope.factor
    if rope.kind == "factors":
        return base / torch.tensor(rope.factors, dtype=torch.float32)
    if rope.kind == "llama3":
        return _llama3(base, rope)
    return base


def _llama3(base: torch.Tensor, rope: RopeConfig) -> torch.Tensor:
    """Long wavelengths are stretched, short ones kept, those between blended."""
    wavelength = 2 * math.pi / base
    blend = (rope.original_context / wavelength - rope.low_freq_factor) / (
        rope.high_freq_factor - rope.low_freq_factor
    )
    blended = (1 - blend) * base / rope.factor + blend * base
    stretched = wavelength > rope.original_context / rope.low_freq_factor
    kept = wavelength < rope.original_context / rope.high_freq_factor
    return torch.where(stretched, base / rope.factor, torch.where(kept, base, blended))


def rope_tables(
    positions: torch.Tensor, inv_freq: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """(cos, sin), each [T, 1, dim / 2] float32, to be shared by all layers of a step."""
    angles = (positions.float()[:, None] * inv_freq)[:, None]
    return angles.cos(), angles.sin()


def apply_rope(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """x [T, heads, dim] -> rotated, same shape, contiguous."""
    x1, x2 = x.chunk(2, dim=-1)
    return torch.cat((x1 * cos - x2 * sin, x2 * cos + x1 * sin), dim=-1)
