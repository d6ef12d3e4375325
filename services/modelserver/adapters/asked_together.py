"""Many small questions in few calls: what is asked while a call is under way goes in the next.

A single question is never held back; how many share a call follows from how long calls take.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

from libs.errors import Internal

Question = TypeVar("Question")
Answer = TypeVar("Answer")


class AskedTogether(Generic[Question, Answer]):
    """`ask` gets up to `most` questions and returns an answer to each, in order; what it raises is
    raised to all who asked."""

    def __init__(
        self, ask: Callable[[Sequence[Question]], Awaitable[Sequence[Answer]]], most: int
    ) -> None:
        self._ask = ask
        self._most = most
        self._waiting: list[tuple[Question, asyncio.Future[Answer]]] = []
        self._asking: asyncio.Task[None] | None = None

    async def __call__(self, question: Question) -> Answer:
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting.append((question, answer))
        if self._asking is None:
            self._asking = asyncio.create_task(self._ask_all())
        return await answer

    async def _ask_all(self) -> None:
        try:
            while self._waiting:
                some, self._waiting = self._waiting[: self._most], self._waiting[self._most :]
                # Whoever went away meanwhile wants no answer any more.
                wanted = [each for each in some if not each[1].done()]
                if wanted:
                    await self._ask_some(wanted)
        finally:
            self._asking = None

    async def _ask_some(self, some: Sequence[tuple[Question, asyncio.Future[Answer]]]) -> None:
        try:
            answers = await self._ask([question for question, _ in some])
            if len(answers) != len(some):
                raise Internal(
                    f"{len(some)} questions were answered {len(answers)} times.", "BAD_ANSWER"
                )
        except asyncio.CancelledError:
            for _, future in some:
                future.cancel()
            raise
        except Exception as error:  # noqa: BLE001  # it is theirs
            for _, future in some:
                if not future.done():
                    future.set_exception(error)
            return
        for (_, future), answer in zip(some, answers, strict=True):
            if not future.done():
                future.set_result(answer)

    async def aclose(self) -> None:
        """Gives up what is asked; the askers are cancelled."""
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.gather(self._asking, return_exceptions=True)
        for _, future in self._waiting:
            future.cancel()
