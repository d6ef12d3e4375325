"""Work bound to its client: a disconnect cancels it, plain or streamed."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping
from typing import Any, TypeVar

from starlette.types import Receive, Scope, Send

from services.router.core.responses import SSE_KEEPALIVE

KEEPALIVE_S = 15.0
FIRST_WITHIN_S = 10.0
"""So long a stream's start waits for its first event, so that an early failure has its status."""

T = TypeVar("T")


class ClientGone(Exception):
    """Nobody is left to answer."""


async def until_disconnect(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """The work's result; a disconnect cancels it first and raises ClientGone."""
    task = asyncio.create_task(work)
    gone = asyncio.create_task(_disconnected(receive))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientGone
        return task.result()
    finally:
        for each in (task, gone):
            each.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class EventStream:
    """An ASGI response of server-sent events, which `source` yields ready to send.

    The source is closed in all cases, at once when the client leaves. An exception from it before
    the response has begun is raised to the caller. Later (also while only keep-alive comments were
    sent) it is told as the last event: a stream that just breaks off says nothing.
    """

    def __init__(
        self,
        source: AsyncGenerator[bytes, None],
        failure: Callable[[Exception], bytes],
        headers: Callable[[], Mapping[str, str]] = dict,
        *,
        first_within_s: float = FIRST_WITHIN_S,
    ) -> None:
        """failure: the event that tells of an exception. headers: asked when the response begins,
        which is with the first event or after `first_within_s`."""
        self._source = source
        self._failure = failure
        self._headers = headers
        self._first_within_s = first_within_s
        self._failed = False
        self._next: asyncio.Task[bytes | None] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with contextlib.suppress(ClientGone):
            await until_disconnect(receive, self._send_all(send))

    async def _send_all(self, send: Send) -> None:
        async with contextlib.aclosing(self._source):
            try:
                event = await self._event(self._first_within_s)
                await send(self._start())
                while event is not None:
                    await send({"type": "http.response.body", "body": event, "more_body": True})
                    event = await self._event_or_failure()
                await send({"type": "http.response.body", "body": b"", "more_body": False})
            finally:
                # A generator that runs cannot be closed.
                await self._stop_reading()

    async def _event_or_failure(self) -> bytes | None:
        """As `_event`; an exception becomes the last event."""
        if self._failed:
            return None
        try:
            return await self._event(KEEPALIVE_S)
        except Exception as error:  # noqa: BLE001  # whatever it was, the client is told
            self._failed = True
            return self._failure(error)

    async def _event(self, within_s: float) -> bytes | None:
        """The next event, a comment where none came in time, None at the end."""
        if self._next is None:
            self._next = asyncio.create_task(self._read())
        done, _ = await asyncio.wait({self._next}, timeout=within_s)
        if not done:
            return SSE_KEEPALIVE
        task, self._next = self._next, None
        return task.result()

    async def _read(self) -> bytes | None:
        return await anext(self._source, None)

    async def _stop_reading(self) -> None:
        if self._next is not None:
            self._next.cancel()
            await asyncio.gather(self._next, return_exceptions=True)

    def _start(self) -> dict[str, Any]:
        headers = {"content-type": "text/event-stream; charset=utf-8", "cache-control": "no-cache"}
        headers |= self._headers()
        raw = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
        return {"type": "http.response.start", "status": 200, "headers": raw}
