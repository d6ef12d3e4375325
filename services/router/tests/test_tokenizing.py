"""Nobody's texts are tokenized in vain: queued work of who left is skipped."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from services.router.core.params import COMPLETIONS, GenerationRequest, parse_request
from services.router.text_model import Prompt
from services.router.tokenizing import THREADS, Tokenizing


def request(*prompts: str) -> GenerationRequest:
    return parse_request(COMPLETIONS, {"model": "m", "prompt": list(prompts)})


class Slow:
    """A model whose every prompt waits to be let go."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.go = threading.Event()
        self._loop = asyncio.get_running_loop()
        self._changed = asyncio.Event()

    def prompts(
        self, request: GenerationRequest, is_wanted: Callable[[], bool] = lambda: True, /
    ) -> list[Prompt]:
        for prompt in request.prompts:
            if not is_wanted():
                break
            self.begun.append(str(prompt))
            self._loop.call_soon_threadsafe(self._changed.set)
            assert self.go.wait(10)
        return [Prompt([len(prompt)]) for prompt in request.prompts]

    async def wait_until_begun(self, count: int) -> None:
        async with asyncio.timeout(10):
            while len(self.begun) < count:
                await self._changed.wait()
                self._changed.clear()


@asynccontextmanager
async def tokenizing() -> AsyncIterator[Tokenizing]:
    made = Tokenizing()
    try:
        yield made
    finally:
        made.close()


async def test_who_leaves_the_queue_is_not_worked_for() -> None:
    async with tokenizing() as pool:
        model = Slow()
        first = [asyncio.create_task(pool.prompts(model, request("a"))) for _ in range(THREADS)]
        await model.wait_until_begun(THREADS)
        leaver = asyncio.create_task(pool.prompts(model, request("left")))
        stayer = asyncio.create_task(pool.prompts(model, request("stays")))
        await asyncio.sleep(0)  # Both are in the queue.
        leaver.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leaver
        model.go.set()
        assert await stayer == [Prompt([5])]
        await asyncio.gather(*first)
        assert sorted(model.begun) == ["a", "a", "stays"]


async def test_no_further_prompt_of_who_left_is_begun() -> None:
    async with tokenizing() as pool:
        model = Slow()
        task = asyncio.create_task(pool.prompts(model, request("one", "two")))
        await model.wait_until_begun(1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        model.go.set()
        other = Slow()
        other.go.set()
        # Both threads are free again once these are through.
        await asyncio.gather(*(pool.prompts(other, request("x")) for _ in range(4)))
        assert model.begun == ["one"]
