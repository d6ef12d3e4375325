"""One choice's text out of its tokens: detokenized, stop strings held back, logprobs beside it.

Streamed and whole answers go through here, so they cannot differ: the whole is the sum of the
pieces. A stop string counts when it ends in a token after the first `min_tokens`; it may begin
before, as in vLLM, whose field that is. The token that completes a stop string is the last one of
the answer, however many came with it or were sampled since. Pure: tokens in, pieces out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from libs.text.detokenizer import Detokenizer
from libs.text.stops import StopScanner
from services.router.core.responses import TokenLogprob, TopLogprob


class Vocabulary(Protocol):
    """What is asked of a tokenizer here."""

    def detokenizer(self) -> Detokenizer: ...

    def token_bytes(self, token_id: int) -> bytes: ...


class Scored(NamedTuple):
    """A sampled token's logprob and the best candidates, as the engine tells them."""

    token: int
    logprob: float
    top: Sequence[tuple[int, float]]


class Piece(NamedTuple):
    """More of a choice. `text` may be empty where there are only logprobs to tell."""

    text: str
    logprobs: tuple[TokenLogprob, ...]


class _Pending(NamedTuple):
    entry: TokenLogprob
    end: int
    """Characters of the answer up to the token's text, that included."""


class Answer:
    """`push` the tokens as they come, then `finish` once, unless `stopped`."""

    def __init__(self, vocabulary: Vocabulary, stops: Sequence[str], min_tokens: int = 0) -> None:
        self._vocabulary = vocabulary
        self._detokenizer = vocabulary.detokenizer()
        self._has_stops = bool(stops)
        self._min_tokens = min_tokens
        self._stops = StopScanner(stops)
        self._decoded = 0
        self._sent = 0
        self._pending: list[_Pending] = []
        self.tokens = 0
        """Tokens of the answer so far: all that were pushed, up to and including the one that
        completed a stop string."""

    @property
    def stopped(self) -> bool:
        """A stop string is complete: nothing more will be said."""
        return self._stops.hit is not None

    def push(self, tokens: Sequence[int], scored: Sequence[Scored] = ()) -> Piece:
        """`scored` is empty, or has one entry a token."""
        if self.stopped:
            return Piece("", ())
        if not scored and not self._has_stops:
            self.tokens += len(tokens)
            return self._send(self._stops.push(self._decode(tokens)))
        scores: Sequence[Scored | None] = scored or [None] * len(tokens)
        text = ""
        for token, score in zip(tokens, scores, strict=True):
            self.tokens += 1
            text += self._stops.push(self._decode([token]), counts=self._stops_count)
            if score is not None:
                self._pending.append(_Pending(self._entry(score), self._decoded))
            if self.stopped:
                break
        return self._send(text)

    def finish(self) -> Piece:
        """What was held back, for a choice that ends without a stop string."""
        if self.stopped:
            return Piece("", ())
        text = self._stops.push(self._detokenizer.finish(), counts=self._stops_count)
        text += self._stops.finish()
        self._sent += len(text)
        rest, self._pending = self._pending, []
        return Piece(text, tuple(each.entry for each in rest))

    @property
    def _stops_count(self) -> bool:
        return self.tokens > self._min_tokens

    def _decode(self, tokens: Sequence[int]) -> str:
        text = self._detokenizer.push(tokens)
        self._decoded += len(text)
        return text

    def _send(self, text: str) -> Piece:
        """Tokens are told with the piece that completes their text, those of a stop string with
        the last one: they have no text, but they were sampled and count."""
        self._sent += len(text)
        ready = [each for each in self._pending if self.stopped or each.end <= self._sent]
        self._pending = self._pending[len(ready) :]
        return Piece(text, tuple(each.entry for each in ready))

    def _entry(self, score: Scored) -> TokenLogprob:
        top = tuple(TopLogprob(*self._shown(token), logprob) for token, logprob in score.top)
        return TokenLogprob(*self._shown(score.token), score.logprob, top)

    def _shown(self, token: int) -> tuple[str, bytes]:
        raw = self._vocabulary.token_bytes(token)
        return raw.decode("utf-8", "replace"), raw
