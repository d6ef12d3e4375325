"""Requests around gRPC's own 4 MiB and far above, over HTTP and gRPC: read whole, judged by tokens.

The model's context is smaller than any of them, and that is what the client is told.
"""

from __future__ import annotations

import asyncio
import json
from urllib.parse import urlsplit

import grpc
import pytest

from impala.router.v1 import router_pb2, router_pb2_grpc
from libs.rpc import connect, from_rpc_error
from libs.rpc.server import MAX_MESSAGE_BYTES
from services.router.http.body import MAX_BODY_BYTES
from services.router.tests.conftest import MODEL, Stage

MB = 1_000_000
PATH = "/v1/chat/completions"


def body_of(size: int) -> bytes:
    body = {"model": MODEL, "messages": [{"role": "user", "content": ""}]}
    return json.dumps(body).replace('"content": ""', f'"content": "{"x" * size}"').encode()


@pytest.mark.parametrize("size", [39 * MB // 10, 41 * MB // 10, 20 * MB])
async def test_a_request_of_this_size_is_judged_by_its_tokens(stage: Stage, size: int) -> None:
    body = body_of(size)
    answer = await stage.http().post(PATH, content=body)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "context_length_exceeded")
    async with connect(stage.router.address) as channel:
        stub = router_pb2_grpc.InferenceStub(channel)
        request = router_pb2.CompleteRequest(endpoint=PATH, body_json=body.decode())
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.Complete(request, timeout=60)
    assert from_rpc_error(caught.value).reason == "CONTEXT_LENGTH_EXCEEDED"


async def test_beyond_the_bound_one_error_names_it(stage: Stage) -> None:
    url = urlsplit(stage.router.http_url)
    reader, writer = await asyncio.open_connection(url.hostname, url.port)
    length = MAX_BODY_BYTES + 1
    writer.write(f"POST {PATH} HTTP/1.1\r\nhost: x\r\ncontent-length: {length}\r\n\r\n".encode())
    answer = await reader.readuntil(b"}}")
    writer.close()
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert f"larger than {MAX_BODY_BYTES} bytes" in answer.decode()
    async with connect(stage.router.address, max_message_bytes=2 * MAX_MESSAGE_BYTES) as channel:
        request = router_pb2.CompleteRequest(body_json="x" * (MAX_MESSAGE_BYTES + 1))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await router_pb2_grpc.InferenceStub(channel).Complete(request, timeout=60)
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert str(MAX_MESSAGE_BYTES) in str(caught.value.details())
