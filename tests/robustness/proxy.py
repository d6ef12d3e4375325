"""A TCP proxy that can break connections: what a network does to a service that goes on living."""

from __future__ import annotations

import asyncio
import contextlib
from types import TracebackType
from typing import Self

HOST = "127.0.0.1"
CHUNK = 1 << 16


class Proxy:
    """`async with Proxy(listen, target)`: connections to `listen` go on to `target`, both ports of
    loopback. Nobody there to connect to is a connection that ends at once."""

    def __init__(self, listen: int, target: int) -> None:
        self.port = listen
        self._target = target
        self._blocked = False
        self._open: set[asyncio.StreamWriter] = set()
        self._carrying: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, HOST, self.port)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.close()
        self.cut()
        await asyncio.gather(*self._carrying, return_exceptions=True)

    def cut(self) -> None:
        """Breaks what is connected."""
        for writer in list(self._open):
            writer.transport.abort()

    def block(self) -> None:
        """Breaks what is connected, and every later connection until `unblock`."""
        self._blocked = True
        self.cut()

    def unblock(self) -> None:
        self._blocked = False

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._carrying.add(task)
        task.add_done_callback(self._carrying.discard)
        if self._blocked:
            writer.transport.abort()
            return
        try:
            onward_reader, onward = await asyncio.open_connection(HOST, self._target)
        except OSError:
            writer.transport.abort()
            return
        self._open |= {writer, onward}
        try:
            # One side's end is the other's: no protocol here goes on with half a connection.
            ways = [
                asyncio.ensure_future(_carry(reader, onward)),
                asyncio.ensure_future(_carry(onward_reader, writer)),
            ]
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            for each in (writer, onward):
                each.close()
            await asyncio.gather(*ways)
        finally:
            self._open -= {writer, onward}


async def _carry(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await source.read(CHUNK):
            target.write(data)
            await target.drain()
    target.close()
