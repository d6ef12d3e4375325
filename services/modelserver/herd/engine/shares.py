"""How one engine step's time is booked to the steps that took part."""

from collections.abc import Sequence

from services.modelserver.herd.core.plan import Chunk

_CONTEXT_PER_TOKEN = 1 / 512
"""Attention over this share of a token's context costs as much as feeding a token to the weights
(measured order of magnitude on CPU; only the ratio between neighbours depends on it)."""


def split_time(seconds: float, chunks: Sequence[Chunk]) -> list[float]:
    """A share for each chunk; the shares sum to `seconds`."""
    weights = [_weight(chunk) for chunk in chunks]
    total = sum(weights)
    return [seconds * weight / total for weight in weights] if total else []


def _weight(chunk: Chunk) -> float:
    mean_context = chunk.start + chunk.count / 2
    return chunk.count * (1.0 + mean_context * _CONTEXT_PER_TOKEN)
