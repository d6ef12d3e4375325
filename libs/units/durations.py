"""Quantiles of durations in bounded memory.

Buckets with bounds in a geometric row, as in DDSketch (Masson, Rim and Lee, VLDB 2019): a quantile
is off by at most 5 % of its value, two sketches merge by adding, and the size is bounded however
many durations there are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

_GAMMA = 1.1
_LOG_GAMMA = math.log(_GAMMA)
_LOW_S = 1e-3
_HIGH_S = 1e7
"""Shorter and longer durations count as these."""


@dataclass(frozen=True, slots=True)
class Quantiles:
    """Seconds; 0 when nothing was counted."""

    p50: float
    p90: float
    p99: float
    count: int


class DurationSketch:
    def __init__(self) -> None:
        self._counts: dict[int, int] = {}

    @property
    def count(self) -> int:
        return sum(self._counts.values())

    def add(self, seconds: float) -> None:
        self._count(_bucket(seconds), 1)

    def remove(self, seconds: float) -> None:
        """Takes back one `add` of this duration, here or in the sketch that this one is merged
        into: until then it is a difference, and has no quantiles."""
        self._count(_bucket(seconds), -1)

    def merge(self, other: DurationSketch) -> None:
        for bucket, count in other._counts.items():
            self._count(bucket, count)

    def _count(self, bucket: int, by: int) -> None:
        count = self._counts.get(bucket, 0) + by
        if count:
            self._counts[bucket] = count
        else:
            del self._counts[bucket]

    def quantile(self, share: float) -> float:
        """Seconds that `share` (0..1) of the durations do not exceed; 0 when there are none."""
        rank = max(1, math.ceil(share * self.count))
        for bucket in sorted(self._counts):
            rank -= self._counts[bucket]
            if rank <= 0:
                # The middle, in relative error, of (gamma^(bucket-1), gamma^bucket].
                return _LOW_S * _GAMMA**bucket * 2.0 / (1.0 + _GAMMA)
        return 0.0

    def quantiles(self) -> Quantiles:
        p50, p90, p99 = (self.quantile(share) for share in (0.5, 0.9, 0.99))
        return Quantiles(p50, p90, p99, self.count)

    def to_list(self) -> list[float]:
        """bucket, count, bucket, count ...: at most 2 x 243 numbers, ascending by bucket."""
        return [float(number) for pair in sorted(self._counts.items()) for number in pair]

    @classmethod
    def from_list(cls, numbers: Sequence[float]) -> DurationSketch:
        """ValueError when it is no list that `to_list` makes."""
        if len(numbers) % 2:
            raise ValueError("a sketch is pairs of bucket and count")
        sketch = cls()
        for bucket, count in zip(numbers[::2], numbers[1::2], strict=True):
            sketch._counts[int(bucket)] = int(count)
        return sketch


def _bucket(seconds: float) -> int:
    clipped = min(max(seconds, _LOW_S), _HIGH_S)
    return math.ceil(math.log(clipped / _LOW_S) / _LOG_GAMMA)
