"""A TCP proxy that counts the HTTP/2 frames passing through it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_PING, _GOAWAY = 6, 7
_ACK = 1


class FrameProxy:
    """Counts by name: connections, pings (from the client), pongs, goaways (from the server)."""

    def __init__(self) -> None:
        self.port = 0
        self.counts: Counter[str] = Counter()
        self._changed = asyncio.Condition()

    async def wait_until(self, holds: Callable[[Counter[str]], bool]) -> None:
        async with self._changed:
            await self._changed.wait_for(lambda: holds(self.counts))

    async def count(self, name: str) -> None:
        async with self._changed:
            self.counts[name] += 1
            self._changed.notify_all()

    async def from_client(self, kind: int, flags: int) -> None:
        if kind == _PING and not flags & _ACK:
            await self.count("pings")

    async def from_server(self, kind: int, flags: int) -> None:
        if kind == _PING and flags & _ACK:
            await self.count("pongs")
        if kind == _GOAWAY:
            await self.count("goaways")


@asynccontextmanager
async def frame_proxy(target_port: int) -> AsyncIterator[FrameProxy]:
    proxy = FrameProxy()
    tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        await proxy.count("connections")
        up_reader, up_writer = await asyncio.open_connection("127.0.0.1", target_port)
        up_writer.write(await reader.readexactly(len(_PREFACE)))
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(_pump(reader, up_writer, proxy.from_client))
                group.create_task(_pump(up_reader, writer, proxy.from_server))
        except* (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()
            up_writer.close()
            tasks.discard(task)

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    proxy.port = server.sockets[0].getsockname()[1]
    try:
        yield proxy
    finally:
        server.close()
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _pump(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, seen: Callable[[int, int], object]
) -> None:
    while True:
        head = await reader.readexactly(9)
        body = await reader.readexactly(int.from_bytes(head[:3]))
        writer.write(head + body)
        await writer.drain()
        counted = seen(head[3], head[4])
        if asyncio.iscoroutine(counted):
            await counted
