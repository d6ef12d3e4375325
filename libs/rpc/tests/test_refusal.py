"""A call that is refused while its client still sends ends with the refusal's status."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from libs.errors import Unauthenticated
from libs.rpc import upload
from libs.rpc.tests.raw import raw_service, uploading
from libs.testing.rpc import connected, serving

TRIES = 20
"""Of a race that was lost in every second try."""


async def refuse(requests: AsyncIterator[bytes], _: Any) -> bytes:
    raise Unauthenticated("No member.", "NO_MEMBER")


async def messages(count: int, size: int) -> AsyncIterator[bytes]:
    for _ in range(count):
        yield bytes(size)


async def endless() -> AsyncIterator[bytes]:
    while True:
        await asyncio.sleep(0)
        yield b"more"


@pytest.mark.parametrize(("count", "size"), [(1, 10), (100, 10), (10, 400_000)])
async def test_any_client_is_told_why_its_upload_is_refused(count: int, size: int) -> None:
    async with serving(raw_service(uploading={"Put": refuse})) as rpc, connected(rpc) as channel:
        for _ in range(TRIES):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await uploading(channel, "Put")(messages(count, size), timeout=60)
            assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED


async def test_a_client_of_ours_is_told_even_where_it_never_stops_sending() -> None:
    """The server's patience ends, and a write is cut off."""
    async with serving(raw_service(uploading={"Put": refuse})) as rpc, connected(rpc) as channel:
        for _ in range(TRIES // 4):
            with pytest.raises(Unauthenticated) as caught:
                await upload(uploading(channel, "Put"), endless(), timeout_s=60)
            assert caught.value.reason == "NO_MEMBER"


async def test_a_server_that_drains_refuses_an_upload_by_that_word() -> None:
    entered = asyncio.Event()

    async def wait(request: bytes, _: Any) -> bytes:
        entered.set()
        await asyncio.Event().wait()
        return b""

    service = raw_service(unary={"Wait": wait}, uploading={"Put": refuse})
    async with serving(service) as rpc, connected(rpc) as channel:
        running = channel.unary_unary("/impala.test.Raw/Wait", None, None)(b"")
        await entered.wait()
        draining = asyncio.create_task(rpc.drain(60))
        for _ in range(TRIES):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await uploading(channel, "Put")(messages(100, 10), timeout=60)
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE, caught.value
        running.cancel()
        await draining
