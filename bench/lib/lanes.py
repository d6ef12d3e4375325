"""The precisions side by side: each a loaded model, timed in turn with the machine's limits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from bench.lib.clocks import Clock
from bench.lib.cost import Work
from bench.lib.herd import Loaded
from bench.lib.limits import Probe, float_probe, int8_probe, read_probe
from bench.lib.stats import Spread, interleave, spread

Say = Callable[[str], None]
_READ = "read"


@dataclass(frozen=True, slots=True)
class Timed:
    """Seconds of one precision's rounds, and the machine's floor for the same rounds."""

    seconds: list[float]
    floors: list[float]

    @property
    def efficiency(self) -> Spread:
        """Floor over measured, round by round: 1 is the most the machine allows."""
        pairs = zip(self.floors, self.seconds, strict=True)
        return spread([floor / took for floor, took in pairs])

    def rate(self, amount: float) -> Spread:
        """amount per second."""
        return spread([amount / took for took in self.seconds])


class Lanes:
    """Owns the models and the probes of the limits."""

    def __init__(self, models: Mapping[str, Loaded], clock: Clock, say: Say) -> None:
        self.models = models
        self._clock = clock
        self._say = say
        self._probes = {_READ: read_probe(), "float32": float_probe()}
        if "int8" in models:
            self._probes["int8"] = int8_probe()
        self.limits: dict[str, list[float]] = {name: [] for name in self._probes}

    def compare(
        self,
        what: str,
        runs: Mapping[str, Callable[[], object]],
        works: Mapping[str, Work],
        rounds: int,
    ) -> dict[str, Timed]:
        """Time each precision's run and the limits in turn, `rounds` times."""
        probes = {
            f"limit of {name}": self._timed_probe(probe) for name, probe in self._probes.items()
        }
        timed = {name: self._timed(run) for name, run in runs.items()}
        values = interleave(
            probes | timed, rounds, lambda at, name: self._progress(what, at, rounds, name)
        )
        limits = {name: values[f"limit of {name}"] for name in self._probes}
        for name, rates in limits.items():
            self.limits[name] += rates
        return {name: Timed(values[name], _floors(works[name], name, limits)) for name in runs}

    def _timed(self, run: Callable[[], object]) -> Callable[[], float]:
        return lambda: self._clock.seconds(run)

    def _timed_probe(self, probe: Probe) -> Callable[[], float]:
        return lambda: probe.amount / self._clock.seconds(probe.run)

    def _progress(self, what: str, at: int, rounds: int, name: str) -> None:
        if name in self.models:
            self._say(f"{what}, round {at + 1}/{rounds}: {name}")


def _floors(work: Work, precision: str, limits: Mapping[str, list[float]]) -> list[float]:
    """int8 multiplies faster than float32; float16 weights are multiplied as float32."""
    gemm = limits["int8" if precision == "int8" else "float32"]
    return [work.floor_s(read, rate) for read, rate in zip(limits[_READ], gemm, strict=True)]
