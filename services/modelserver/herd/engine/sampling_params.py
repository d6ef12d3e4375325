"""SamplingParams: how one request's tokens are chosen, checked once at admission."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

MAX_LOGPROBS = 20
GREEDY_BELOW = 1e-5


class BadSampling(ValueError):
    """A value outside its range. ``field`` is the name of the SamplingParams field."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field} {message}")
        self.field = field


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Raises BadSampling when made with a value outside its range.

    temperature         >= 0; below 1e-5 the most likely token is taken (greedy).
    top_k               0 for no limit, else the k most likely (ties of the k-th stay).
    top_p               (0, 1]: the fewest most likely tokens that reach this mass.
    min_p               [0, 1]: tokens at least this times as likely as the most likely.
    seed                None: whoever admits the request draws one, and sets it by ``with_seed``.
    presence_penalty    [-2, 2], subtracted once from each token of the output so far.
    frequency_penalty   [-2, 2], subtracted for each time it occurs there.
    repetition_penalty  [0.01, 100]; over 1 discourages tokens of prompt and output.
    logit_bias          (token id, bias) pairs, each bias in [-100, 100].
    logprobs            None for none, else how many alternatives (0 to 20) beside the token.
    min_tokens          end and stop tokens cannot be sampled before so many others.
    stop_token_ids      further end tokens of this request.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    logprobs: int | None = None
    min_tokens: int = 0
    stop_token_ids: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        _between("temperature", self.temperature, 0.0, math.inf)
        _between("top_k", self.top_k, 0, math.inf)
        _between("top_p", self.top_p, 0.0, 1.0)
        if self.top_p == 0.0:
            raise BadSampling("top_p", "must be above 0")
        _between("min_p", self.min_p, 0.0, 1.0)
        _between("presence_penalty", self.presence_penalty, -2.0, 2.0)
        _between("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        _between("repetition_penalty", self.repetition_penalty, 0.01, 100.0)
        for _, bias in self.logit_bias:
            _between("logit_bias", bias, -100.0, 100.0)
        _between("logprobs", self.logprobs or 0, 0, MAX_LOGPROBS)
        _between("min_tokens", self.min_tokens, 0, math.inf)

    @property
    def greedy(self) -> bool:
        """The most likely token is taken; seed and truncation do not matter."""
        return self.temperature < GREEDY_BELOW

    @property
    def truncates(self) -> bool:
        """Some unlikely tokens are cut off before drawing."""
        return self.top_k > 0 or self.top_p < 1.0 or self.min_p > 0.0

    @property
    def penalizes(self) -> bool:
        """Logits depend on the tokens so far."""
        return (
            self.presence_penalty != 0.0
            or self.frequency_penalty != 0.0
            or self.repetition_penalty != 1.0
        )

    def with_seed(self, seed: int) -> SamplingParams:
        """The same with a seed; any integer, taken modulo 2**64."""
        return replace(self, seed=seed)

    def check_vocabulary(self, vocab: int) -> None:
        """BadSampling when a token id is none of ``vocab`` ids. Call it before the first sample."""
        for token, _ in self.logit_bias:
            _between("logit_bias", token, 0, vocab - 1)
        for token in self.stop_token_ids:
            _between("stop_token_ids", token, 0, vocab - 1)


def _between(field: str, value: float, low: float, high: float) -> None:
    # Infinity is no temperature: it must be finite and within, and NaN fails the comparison.
    if math.isfinite(value) and low <= value <= high:
        return
    allowed = f"at least {low}" if math.isinf(high) else f"from {low} to {high}"
    raise BadSampling(field, f"must be {allowed}, not {value}")
