"""A task that feeds a watch into a state, and tells who waits that the state has changed."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from types import TracebackType
from typing import Protocol, Self

from libs.cluster.client import EtcdClient
from libs.cluster.watch import Watch, WatchItem
from libs.lasting import lasting


class Follows(Protocol):
    """The state. `now` and `recovered_at` (see Watch) are the event loop's time."""

    def apply(self, item: WatchItem, now: float, recovered_at: float) -> None: ...

    def next_due(self) -> float | None:
        """When `expire` wants to be called, if ever."""
        ...

    def expire(self, now: float) -> None: ...


class Follower:
    """The one writer of its state. `version` counts the changes."""

    def __init__(
        self, client: EtcdClient, prefix: str, state: Follows, *, silence_s: float = 3.0
    ) -> None:
        self.version = 0
        self._watch: Watch = client.watch(prefix, silence_s=silence_s)
        self._state = state
        self._changed = asyncio.Condition()
        self._failure: BaseException | None = None
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Returns with the first snapshot applied; ClusterUnavailable if etcd does not answer."""
        await self._apply(await anext(self._watch))
        self._task = lasting(self._follow(), f"follow {self._watch.prefix}")

    async def aclose(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        await self._watch.aclose()

    async def wait_until(self, holds: Callable[[], bool]) -> None:
        """Until the condition on the state holds; raises what ended the watch if that is first."""
        async with self._changed:
            await self._changed.wait_for(lambda: holds() or self._failure is not None)
        if self._failure is not None and not holds():
            raise self._failure

    async def changed(self, seen: int) -> int:
        """Waits for a version other than `seen`; returns it."""
        await self.wait_until(lambda: self.version != seen)
        return self.version

    async def _follow(self) -> None:
        try:
            while True:
                await self._apply(await self._next_item())
        except Exception as error:
            async with self._changed:
                self._failure = error
                self._changed.notify_all()
            raise

    async def _next_item(self) -> WatchItem | None:
        """None if something is due in the state before the next item comes."""
        due = self._state.next_due()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(due):
                return await anext(self._watch)
        return None

    async def _apply(self, item: WatchItem | None) -> None:
        now = asyncio.get_running_loop().time()
        if item is not None:
            self._state.apply(item, now, self._watch.recovered_at)
        self._state.expire(now)
        async with self._changed:
            self.version += 1
            self._changed.notify_all()


class Following:
    """Base of the live views: `async with View(...) as view`, or `start` and `aclose`."""

    _follower: Follower

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.aclose()

    async def start(self) -> None:
        """Returns once the view is filled; ClusterUnavailable if etcd does not answer."""
        await self._follower.start()

    async def aclose(self) -> None:
        await self._follower.aclose()

    @property
    def version(self) -> int:
        return self._follower.version

    async def changed(self, seen: int) -> int:
        """Waits until `version` is no longer `seen`; returns the new one."""
        return await self._follower.changed(seen)

    async def wait_until(self, holds: Callable[[], bool]) -> None:
        await self._follower.wait_until(holds)
