"""A synthetic load in the form of agent work, closed loop: steps come as their traces' last end.

All traces share a head (the harness's system prompt and tools). A step's prompt is the prompt and
answer of the step before and a tool's result.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class AgentShape:
    """Counts; lengths in tokens."""

    traces: int
    steps: int
    head: int
    task: int
    result: int
    answer: int

    @property
    def prompt_tokens(self) -> int:
        """Of all steps, cached or not."""
        first = self.head + self.task
        return self.traces * sum(
            first + at * (self.answer + self.result) for at in range(self.steps)
        )

    @property
    def answer_tokens(self) -> int:
        return self.traces * self.steps * self.answer

    @property
    def longest(self) -> int:
        """Tokens of a trace at its end."""
        return self.head + self.task + self.steps * (self.answer + self.result)


class Server(Protocol):
    """Takes steps; tells tokens and ends."""

    def add(self, step_id: str, prompt: Sequence[int], answer: int) -> None: ...

    def advance(self) -> tuple[dict[str, list[int]], list[str]]:
        """(new tokens by step id, ids of steps that ended)."""
        ...


class AgentLoad:
    """One run of a shape; the same seed gives the same prompts (answers are the model's own)."""

    def __init__(self, shape: AgentShape, vocab: int, seed: int) -> None:
        self._shape = shape
        self._vocab = vocab
        self._chance = random.Random(seed)
        head = self._text(shape.head)
        self._traces = [head + self._text(shape.task) for _ in range(shape.traces)]
        self._done = [0] * shape.traces

    def run(self, server: Server) -> None:
        """Until every trace has made its steps."""
        for trace in range(len(self._traces)):
            self._submit(server, trace)
        left = self._shape.traces * self._shape.steps
        while left:
            tokens, ended = server.advance()
            for step_id, new in tokens.items():
                self._traces[_trace_of(step_id)] += new
            for step_id in ended:
                left -= 1
                self._next(server, _trace_of(step_id))

    def _next(self, server: Server, trace: int) -> None:
        self._done[trace] += 1
        if self._done[trace] < self._shape.steps:
            self._traces[trace] += self._text(self._shape.result)
            self._submit(server, trace)

    def _submit(self, server: Server, trace: int) -> None:
        step_id = f"{trace}.{self._done[trace]}"
        server.add(step_id, tuple(self._traces[trace]), self._shape.answer)

    def _text(self, count: int) -> list[int]:
        return [self._chance.randrange(self._vocab) for _ in range(count)]


def _trace_of(step_id: str) -> int:
    return int(step_id.partition(".")[0])
