"""Figures of repeated measurements, and the order in which they are taken. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Spread:
    """A median and how far from it the others lay."""

    median: float
    low: float
    high: float
    count: int

    @property
    def relative(self) -> float:
        """(high - low) / median: 0 means that every round gave the same; 0 for a median of 0."""
        return (self.high - self.low) / self.median if self.median else 0.0

    def as_json(self) -> dict[str, float]:
        return {
            "median": rounded(self.median),
            "min": rounded(self.low),
            "max": rounded(self.high),
            "rounds": self.count,
        }


def spread(values: Sequence[float]) -> Spread:
    """ValueError for no values."""
    if not values:
        raise ValueError("nothing was measured")
    return Spread(statistics.median(values), min(values), max(values), len(values))


def interleave(
    variants: Mapping[str, Callable[[], T]],
    rounds: int,
    on_run: Callable[[int, str], None] = lambda at, name: None,
) -> dict[str, list[T]]:
    """Run A B C A B C ..., so that whatever slows the machine for a while slows all alike.

    The results of each variant in the order of the rounds. `on_run(round, name)` comes before each.
    """
    results: dict[str, list[T]] = {name: [] for name in variants}
    for at in range(rounds):
        for name, run in variants.items():
            on_run(at, name)
            results[name].append(run())
    return results


def paired_ratio(over: Sequence[float], under: Sequence[float]) -> Spread:
    """over / under of the same round: rounds that were slow for both leave it as it is.

    ValueError for different numbers of rounds, or for none.
    """
    if len(over) != len(under):
        raise ValueError(f"{len(over)} rounds against {len(under)}")
    return spread([a / b for a, b in zip(over, under, strict=True)])


def rounded(value: float) -> float:
    """Four significant digits: nothing measured here knows more."""
    return float(f"{value:.4g}")
