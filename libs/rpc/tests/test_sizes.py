"""Messages around gRPC's own 4 MiB, both ways, and what is said beyond our bound."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from libs.errors import ResourceExhausted
from libs.rpc import call, connect, stream, upload
from libs.rpc.server import MAX_MESSAGE_BYTES
from libs.rpc.tests.raw import echo, raw_service, streaming, unary, uploading
from libs.testing.rpc import connected, serving

MB = 1_000_000
SIZES = (39 * MB // 10, 41 * MB // 10, 20 * MB)


async def back(request: bytes, _: Any) -> AsyncIterator[bytes]:
    yield request
    yield request


async def total(requests: AsyncIterator[bytes], _: Any) -> bytes:
    return str(sum([len(request) async for request in requests])).encode()


async def twice(content: bytes) -> AsyncIterator[bytes]:
    yield content
    yield content


@pytest.mark.parametrize("size", SIZES)
async def test_a_message_of_this_size_passes_both_ways(size: int) -> None:
    content = bytes(size)
    service = raw_service(unary={"Echo": echo}, streaming={"Back": back}, uploading={"Sum": total})
    async with serving(service) as rpc, connected(rpc) as channel:
        assert await call(unary(channel, "Echo"), content, timeout_s=60) == content
        answers = stream(streaming(channel, "Back"), content, timeout_s=60)
        assert [len(answer) async for answer in answers] == [size, size]
        told = await upload(uploading(channel, "Sum"), twice(content), timeout_s=60)
        assert int(told) == 2 * size


async def test_beyond_the_bound_the_error_names_it_either_way() -> None:
    async def much(request: bytes, _: Any) -> bytes:
        return bytes(1001)

    service = raw_service(unary={"Echo": echo, "Much": much})
    async with serving(service, max_message_bytes=1000) as rpc, connect(rpc.address) as channel:
        for method, request in (("Echo", bytes(1001)), ("Much", b"")):
            with pytest.raises(ResourceExhausted, match=r"1001 (bytes )?vs\.? .*1000"):
                await call(unary(channel, method), request, timeout_s=10)
        assert await call(unary(channel, "Echo"), bytes(1000), timeout_s=10) == bytes(1000)


async def test_the_default_bound_is_told_before_anything_is_sent() -> None:
    async with serving(raw_service(unary={"Echo": echo})) as rpc, connected(rpc) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await unary(channel, "Echo")(bytes(MAX_MESSAGE_BYTES + 1), timeout=60)
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert str(MAX_MESSAGE_BYTES) in str(caught.value.details())
