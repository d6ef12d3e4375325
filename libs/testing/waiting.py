"""Waiting in a test for a condition that nothing announces."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable


async def eventually(
    holds: Callable[[], bool | Awaitable[bool]], *, within_s: float = 20.0
) -> None:
    """Returns once it holds; TimeoutError if it does not in time."""
    async with asyncio.timeout(within_s):
        while not await _value(holds()):  # noqa: ASYNC110  # there is no event to wait for
            await asyncio.sleep(0.01)


async def _value(answer: bool | Awaitable[bool]) -> bool:
    return answer if isinstance(answer, bool) else await answer
