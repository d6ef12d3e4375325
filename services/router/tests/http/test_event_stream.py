"""Server-sent events when their source fails: before the response began, and after."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from services.router.http.stream import EventStream


class Broken(Exception):
    pass


class Client:
    """Keeps what is sent; never leaves."""

    def __init__(self) -> None:
        self.sent: list[dict[str, Any]] = []
        self.begun = asyncio.Event()

    async def receive(self) -> dict[str, Any]:
        await asyncio.Event().wait()
        raise AssertionError("nothing sets that event")

    async def send(self, message: Any) -> None:
        self.sent.append(message)
        self.begun.set()

    @property
    def body(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.sent)


async def run(source: AsyncGenerator[bytes, None], client: Client, **options: Any) -> None:
    stream = EventStream(source, lambda error: f"told: {error!r}".encode(), **options)
    await stream({"type": "http"}, client.receive, client.send)


async def test_a_failure_before_the_response_has_begun_is_the_callers() -> None:
    async def source() -> AsyncGenerator[bytes, None]:
        raise Broken
        yield b""

    client = Client()
    with pytest.raises(Broken):
        await run(source(), client)
    assert client.sent == []


async def test_a_failure_after_only_keep_alive_comments_is_told_in_the_stream() -> None:
    client = Client()

    async def source() -> AsyncGenerator[bytes, None]:
        await client.begun.wait()
        raise Broken
        yield b""

    await run(source(), client, first_within_s=0.001)
    assert client.body.endswith(b"told: Broken()")
    assert client.sent[-1] == {"type": "http.response.body", "body": b"", "more_body": False}


async def test_a_failure_after_an_event_is_the_last_event() -> None:
    async def source() -> AsyncGenerator[bytes, None]:
        yield b"one "
        raise Broken

    client = Client()
    await run(source(), client)
    assert client.body == b"one told: Broken()"
