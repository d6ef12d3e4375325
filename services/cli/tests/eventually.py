"""Waiting on a condition, with a deadline."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from libs.clock.polling import wait_until

WITHIN_S = 30.0
LOOK_EVERY_S = 0.02


async def eventually(
    holds: Callable[[], bool], what: str = "it", within_s: float = WITHIN_S
) -> None:
    deadline = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < deadline, f"{what} did not happen within {within_s} s"
        await asyncio.sleep(LOOK_EVERY_S)


def soon(holds: Callable[[], bool], what: str = "it", within_s: float = WITHIN_S) -> None:
    """The same where there is no event loop."""
    happened = wait_until(holds, within_s, every_s=LOOK_EVERY_S)
    assert happened, f"{what} did not happen within {within_s} s"
