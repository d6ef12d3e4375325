"""What a runner samples from and what it gives back: values, without torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from services.modelserver.herd.engine.sampling_params import SamplingParams


@dataclass(frozen=True, slots=True)
class RowSampling:
    """What the sampler knows of one row's request.

    ``tokens`` are the prompt's ``num_prompt`` ids, then those sampled so far; the count of the
    latter is the row's noise counter. ``params.seed`` is set unless the row is greedy.
    """

    params: SamplingParams
    tokens: Sequence[int]
    num_prompt: int

    @property
    def sampled(self) -> int:
        """How many tokens were sampled before this one."""
        return len(self.tokens) - self.num_prompt


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Natural logs of probabilities: the sampled token's, and (token id, log), best first."""

    chosen: float
    top: tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True)
class Sampled:
    """One entry a row. ``logprobs`` is None for rows that did not ask."""

    tokens: list[int]
    logprobs: list[TokenLogprobs | None]
