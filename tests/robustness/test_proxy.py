"""The proxy carries bytes both ways, and breaks what it is told to break."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from libs.testing.rpc import free_port
from tests.robustness.proxy import HOST, Proxy


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(100):
        writer.write(data)
    writer.close()


@pytest.fixture
async def proxy() -> AsyncIterator[Proxy]:
    server = await asyncio.start_server(echo, HOST, 0)
    async with server, Proxy(free_port(), server.sockets[0].getsockname()[1]) as proxy:
        yield proxy


async def answer(proxy: Proxy) -> bytes:
    """Of a new connection; nothing when it ends at once."""
    reader, writer = await asyncio.open_connection(HOST, proxy.port)
    try:
        writer.write(b"hello")
        return await reader.read(5)
    except ConnectionError:
        return b""
    finally:
        writer.close()


async def test_it_carries_and_cuts(proxy: Proxy) -> None:
    reader, writer = await asyncio.open_connection(HOST, proxy.port)
    writer.write(b"one")
    assert await reader.readexactly(3) == b"one"
    proxy.cut()
    assert await reader.read(1) == b""
    writer.close()
    assert await answer(proxy) == b"hello"


async def test_while_blocked_nobody_gets_through(proxy: Proxy) -> None:
    proxy.block()
    assert await answer(proxy) == b""
    proxy.unblock()
    assert await answer(proxy) == b"hello"
