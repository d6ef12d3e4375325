"""Rotary options as the two file formats write them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from services.modelserver.herd.kernels.rope import RopeConfig
from services.modelserver.herd.models.errors import UnsupportedModel

DEFAULT_THETA = 10_000.0


def rope_from_hf(scaling: Mapping[str, Any], theta: float) -> RopeConfig:
    """scaling: transformers 5's rope_parameters, or rope_scaling before that with the theta."""
    theta = float(scaling.get("rope_theta", theta))
    kind = str(scaling.get("rope_type", scaling.get("type", "default")))
    if kind == "default":
        return RopeConfig(theta)
    if kind == "linear":
        return RopeConfig(theta, kind, factor=float(scaling["factor"]))
    if kind == "llama3":
        return RopeConfig(
            theta,
            kind,
            factor=float(scaling["factor"]),
            low_freq_factor=float(scaling["low_freq_factor"]),
            high_freq_factor=float(scaling["high_freq_factor"]),
            original_context=int(scaling["original_max_position_embeddings"]),
        )
    raise UnsupportedModel(
        f"rope scaling {kind} is not supported; supported: default, linear, llama3"
    )


def rope_from_gguf(
    fields: Mapping[str, Any], architecture: str, factors: Sequence[float]
) -> RopeConfig:
    theta = float(fields.get(f"{architecture}.rope.freq_base", DEFAULT_THETA))
    kind = str(fields.get(f"{architecture}.rope.scaling.type", "none"))
    if factors:
        return RopeConfig(theta, "factors", factors=tuple(float(f) for f in factors))
    if kind == "none":
        return RopeConfig(theta)
    if kind == "linear":
        factor = float(fields[f"{architecture}.rope.scaling.factor"])
        return RopeConfig(theta, "linear", factor=factor)
    raise UnsupportedModel(f"rope scaling {kind} in a GGUF file is not supported")
