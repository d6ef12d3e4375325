"""Waiting for what tells nobody: another process, a file, a port that is not open yet.

Only for synchronous code, which has no event loop to be woken in; what can be awaited is awaited.
"""

from __future__ import annotations

import time
from collections.abc import Callable


def wait_until(
    holds: Callable[[], bool],
    within_s: float,
    *,
    every_s: float,
    hopeless: Callable[[], bool] = lambda: False,
) -> bool:
    """Looks every `every_s` seconds, first at once. False when `within_s` seconds are over, or as
    soon as it is `hopeless`: then it is the caller's to say what went wrong."""
    deadline = time.monotonic() + within_s
    while not holds():
        if hopeless() or time.monotonic() > deadline:
            return False
        time.sleep(every_s)
    return True
