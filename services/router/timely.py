"""What a client sends in pieces, for as long as it goes on sending."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable
from typing import TypeVar

IDLE_S = 30.0
"""Seconds without a piece after which a client is given up: it holds memory meanwhile."""

T = TypeVar("T")


async def timely(
    source: AsyncIterable[T], too_slow: Exception, idle_s: float = IDLE_S
) -> AsyncGenerator[T, None]:
    """The source's items. Raises `too_slow` where none comes for `idle_s` seconds."""
    items = aiter(source)
    while True:
        try:
            async with asyncio.timeout(idle_s):
                item = await anext(items)
        except StopAsyncIteration:
            return
        except TimeoutError:
            raise too_slow from None
        yield item
