"""Waiting for a condition that nothing announces."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


async def eventually(holds: Callable[[], bool], *, within_s: float = 20.0) -> None:
    """Returns once it holds; TimeoutError if it does not in time."""
    async with asyncio.timeout(within_s):
        while not holds():  # noqa: ASYNC110  (there is no event to wait for)
            await asyncio.sleep(0.01)
