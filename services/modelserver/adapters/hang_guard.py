"""Ends the process when its event loop stands still: the last resort against a hang.

What hangs inside foreign code may hold the interpreter's lock, and then nothing written in Python
runs any more, not even the watch over the engine's steps. The standard library's fault handler has
a thread in C for that: it prints where every thread is and ends the process with code 1.
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import sys
from collections.abc import AsyncIterator

from libs.lasting import lasting

LOOKS = 20


@contextlib.asynccontextmanager
async def hang_guard(limit_s: float) -> AsyncIterator[None]:
    """Inside the block the event loop must come round within limit_s, again and again; 0 = it need
    not. A pause of the whole process for that long ends it too."""
    if not limit_s:
        yield
        return
    _arm(limit_s)
    task = lasting(_arm_again(limit_s), "hang guard")
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        faulthandler.cancel_dump_traceback_later()


async def _arm_again(limit_s: float) -> None:
    while True:
        await asyncio.sleep(limit_s / LOOKS)
        _arm(limit_s)


def _arm(limit_s: float) -> None:
    """For so long from now; what was armed before is off."""
    stderr = sys.__stderr__
    assert stderr is not None
    faulthandler.dump_traceback_later(limit_s, exit=True, file=stderr.fileno())
