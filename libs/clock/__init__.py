"""Time as an argument.

Shells take a `Clock`; cores take plain numbers read from it. `ManualClock` is the test seam: time
stands still until the test advances it, and then exactly the sleepers that are due wake up.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import time
from typing import Protocol


class Clock(Protocol):
    """Where a shell reads time. Units are seconds everywhere."""

    def now(self) -> float:
        """Monotonic seconds from an arbitrary origin: for durations and deadlines."""

    def time(self) -> float:
        """Wall-clock Unix seconds: for records and people, never for durations."""

    async def sleep(self, seconds: float) -> None:
        """Return once `now()` has grown by at least `seconds`; <= 0 only yields to the loop."""


class SystemClock:
    """The machine's clocks."""

    def now(self) -> float:
        return time.monotonic()

    def time(self) -> float:
        return time.time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(max(0.0, seconds))


class SteadyClock:
    """Another clock whose wall time does not jump: it began at the other's and grows with its
    monotonic time. For times that are compared with each other, such as when steps of a task began
    and ended; not for what people read, or for deadlines that they gave."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._offset = clock.time() - clock.now()

    def now(self) -> float:
        return self._clock.now()

    def time(self) -> float:
        return self._clock.now() + self._offset

    async def sleep(self, seconds: float) -> None:
        await self._clock.sleep(seconds)


class ManualClock:
    """A clock that only a test moves. Used on one event loop.

    The usual script is: start the code under test, `await clock.wait_for_sleepers(1)`,
    `clock.advance(5)`, then wait for what should have happened.
    """

    def __init__(self, now: float = 0.0, wall: float = 1_700_000_000.0) -> None:
        self._now = now
        self._wall_minus_now = wall - now
        self._order = itertools.count()
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._changed = asyncio.Event()

    def now(self) -> float:
        return self._now

    def time(self) -> float:
        return self._now + self._wall_minus_now

    async def sleep(self, seconds: float) -> None:
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self._now + seconds, next(self._order), woken))
        self._changed.set()
        await woken

    def advance(self, seconds: float) -> None:
        """Move time forward and wake every sleeper now due, earliest first.

        What a woken task does (sleep again, say) happens when the loop next runs it, so a test
        that steps through several sleeps of one task advances once for each.
        """
        if seconds < 0:
            raise ValueError("time does not go backwards")
        self._now += seconds
        while self._sleepers and self._sleepers[0][0] <= self._now:
            woken = heapq.heappop(self._sleepers)[2]
            if not woken.done():
                woken.set_result(None)

    def jump_wall(self, seconds: float) -> None:
        """Step the wall clock (as NTP or an operator does) without touching monotonic time."""
        self._wall_minus_now += seconds

    @property
    def sleepers(self) -> int:
        """How many tasks are asleep on this clock."""
        return sum(not woken.done() for _, _, woken in self._sleepers)

    async def wait_for_sleepers(self, count: int) -> None:
        """Return once at least `count` tasks are asleep on this clock."""
        while self.sleepers < count:
            self._changed.clear()
            await self._changed.wait()
