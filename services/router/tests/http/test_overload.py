"""Clients cannot fill the router's memory: beyond a budget of bytes they are told to come again."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import AsyncIterator, Callable
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
import pytest_asyncio

from impala.router.v1 import router_pb2, router_pb2_grpc
from libs.errors import Unavailable
from libs.rpc import call as rpc_call
from libs.rpc import connect
from libs.testing.waiting import eventually
from services.router.app import Router
from services.router.core.params import GenerationRequest
from services.router.files import UPLOAD_BYTES
from services.router.testing import Gate
from services.router.tests.conftest import MODEL, Stage
from services.router.text_model import Prompt, TextModel

LIMIT = 8 << 20
"""One client's share."""
CHAT = "/v1/chat/completions"
ANNOUNCING = f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-length: {LIMIT}\r\n\r\n".encode()


def body(size: int) -> bytes:
    """A request of about so many bytes, few of which are of the prompt."""
    asked = {
        "model": MODEL,
        "messages": [{"role": "user", "content": "Hi"}],
        "prediction": {"content": "x" * size},
    }
    return json.dumps(asked).encode()


@pytest_asyncio.fixture(loop_scope="session")
async def small(bare: Stage) -> Stage:
    """A router with a small budget."""
    await bare.add_server()
    await bare.add_scheduler()
    await bare.add_router(max_request_bytes=2 * LIMIT)
    return bare


def held(stage: Stage) -> int:
    return stage.router.parts.request_bytes.held


def refused(answer: httpx.Response) -> None:
    error = answer.json()["error"]
    assert answer.status_code == 503
    assert error["code"] == "request_bytes_exhausted"
    assert set(error) == {"message", "type", "param", "code"}
    assert int(answer.headers["retry-after"]) >= 1
    assert int(answer.headers["retry-after-ms"]) >= 1


async def test_beyond_the_budget_is_503_until_requests_have_ended(small: Stage) -> None:
    http = small.http()
    small.server.gate = Gate()
    first = asyncio.create_task(http.post(CHAT, content=body(LIMIT // 2)))
    await small.server.wait_until(lambda server: len(server.running) == 1)
    assert held(small) > LIMIT // 2
    refused(await http.post(CHAT, content=body(LIMIT // 2)))
    small.server.gate.open()
    assert (await first).status_code == 200
    assert held(small) == 0
    assert (await http.post(CHAT, content=body(LIMIT // 2))).status_code == 200


async def test_one_client_leaves_half_of_the_budget_to_the_others(small: Stage) -> None:
    http = small.http()
    other = httpx.AsyncClient(
        base_url=small.router.http_url,
        timeout=20,
        transport=httpx.AsyncHTTPTransport(local_address="127.0.0.2"),
    )
    small.stack.push_async_callback(other.aclose)
    small.server.gate = Gate()
    first = asyncio.create_task(http.post(CHAT, content=body(LIMIT - 4096)))
    await small.server.wait_until(lambda server: len(server.running) == 1)
    refused(await http.post(CHAT, content=body(4096)))
    theirs = asyncio.create_task(other.post(CHAT, content=body(LIMIT - 4096)))
    await small.server.wait_until(lambda server: len(server.running) == 2)
    small.server.gate.open()
    assert [(await each).status_code for each in (first, theirs)] == [200, 200]
    assert held(small) == 0


async def test_a_body_of_unknown_length_is_refused_while_it_comes(small: Stage) -> None:
    http = small.http()
    small.server.gate = Gate()
    first = asyncio.create_task(http.post(CHAT, content=body(LIMIT // 2)))
    await small.server.wait_until(lambda server: len(server.running) == 1)
    url = urlsplit(small.router.http_url)
    reader, writer = await asyncio.open_connection(url.hostname, url.port)
    head = f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
    writer.write(head.encode())
    chunk = b"x" * (1 << 20)
    for _ in range(5):
        writer.write(f"{len(chunk):x}\r\n".encode() + chunk + b"\r\n")
    async with asyncio.timeout(10):
        # The body has no end yet.
        answer = await reader.readuntil(b"}}")
    assert answer.startswith(b"HTTP/1.1 503 ")
    assert b"retry-after: 1" in answer
    writer.close()
    small.server.gate.open()
    assert (await first).status_code == 200
    assert held(small) == 0


async def test_an_announced_length_is_refused_before_the_body_and_holds_nothing(
    small: Stage,
) -> None:
    url = urlsplit(small.router.http_url)
    opened = []
    for _ in range(4):
        # These announce much and send little: they shut nobody out.
        _, writer = await asyncio.open_connection(url.hostname, url.port)
        writer.write(ANNOUNCING + b"{")
        opened.append(writer)
    http = small.http()
    small.server.gate = Gate()
    first = asyncio.create_task(http.post(CHAT, content=body(LIMIT // 2)))
    await small.server.wait_until(lambda server: len(server.running) == 1)
    reader, writer = await asyncio.open_connection(url.hostname, url.port)
    writer.write(ANNOUNCING)
    async with asyncio.timeout(10):
        assert (await reader.readuntil(b"}}")).startswith(b"HTTP/1.1 503 ")
    small.server.gate.open()
    assert (await first).status_code == 200
    for each in (*opened, writer):
        each.close()


async def test_a_body_that_could_never_be_held_is_413(small: Stage) -> None:
    answer = await small.http().post(CHAT, content=body(LIMIT))
    assert answer.status_code == 413
    assert answer.json()["error"]["code"] == "request_too_large"


async def test_uploads_under_way_are_counted(small: Stage) -> None:
    url = urlsplit(small.router.http_url)
    writers = []
    for _ in range(LIMIT // UPLOAD_BYTES):
        _, writer = await asyncio.open_connection(url.hostname, url.port)
        writer.write(
            b"POST /v1/files HTTP/1.1\r\nhost: x\r\ncontent-length: 1000000\r\n"
            b"content-type: multipart/form-data; boundary=B\r\n\r\n"
            b'--B\r\nContent-Disposition: form-data; name="file"; filename="x"\r\n\r\nabc'
        )
        writers.append(writer)
    http = small.http()
    await eventually(lambda: held(small) == LIMIT)
    files = {"file": ("x.jsonl", b"{}")}
    refused(await http.post("/v1/files", data={"purpose": "batch"}, files=files))
    for writer in writers:
        writer.close()
    await eventually(lambda: held(small) == 0)
    answer = await http.post("/v1/files", data={"purpose": "batch"}, files=files)
    assert answer.status_code == 200


async def test_the_same_bound_over_grpc(small: Stage) -> None:
    small.server.gate = Gate()
    request = router_pb2.CompleteRequest(endpoint=CHAT, body_json=body(LIMIT // 2).decode())
    async with connect(small.router.address) as channel:
        stub = router_pb2_grpc.InferenceStub(channel)
        first = asyncio.create_task(rpc_call(stub.Complete, request, timeout_s=20))
        await small.server.wait_until(lambda server: len(server.running) == 1)
        with pytest.raises(Unavailable) as caught:
            await rpc_call(stub.Complete, request, timeout_s=20)
        assert caught.value.reason == "REQUEST_BYTES_EXHAUSTED"
        assert caught.value.retry_after_s
        small.server.gate.open()
        await first
        assert held(small) == 0


begun: list[str] = []


class Blocked(TextModel):
    """Its long texts wait to be let go."""

    go = threading.Event()

    def prompts(
        self, request: GenerationRequest, is_wanted: Callable[[], bool] = lambda: True, /
    ) -> list[Prompt]:
        begun.append(str(request.messages[0]["content"])[:1])
        assert self.go.wait(20)
        return super().prompts(request, is_wanted)


@contextlib.asynccontextmanager
async def asking(stage: Stage, letter: str, stream: bool) -> AsyncIterator[None]:
    """A long request on a connection of its own, which is left at the end."""
    url = urlsplit(stage.router.http_url)
    _, writer = await asyncio.open_connection(url.hostname, url.port)
    messages: Any = [{"role": "user", "content": letter * 3000}]
    asked = json.dumps({"model": MODEL, "messages": messages, "stream": stream}).encode()
    head = f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(asked)}\r\n\r\n"
    writer.write(head.encode() + asked)
    await writer.drain()
    try:
        yield
    finally:
        writer.close()


@pytest.mark.parametrize("stream", [False, True])
async def test_the_queued_text_of_a_client_that_left_is_not_tokenized(
    bare: Stage, stream: bool, tmp_path: Path
) -> None:
    begun.clear()
    Blocked.go.clear()

    def load(source: str) -> TextModel:
        return Blocked.load(Path(source), tmp_path, datetime.now)

    await bare.add_server()
    await bare.add_scheduler()
    router = Router(bare.config, metrics=bare.metrics, objects=bare.objects, load_text_model=load)
    async with router:
        bare.routers.append(router)
        async with asking(bare, "a", stream), asking(bare, "b", stream):
            await eventually(lambda: len(begun) == 2)
            async with asking(bare, "c", stream):
                await eventually(lambda: held(bare) > 9000)
            await eventually(lambda: 'code="499"' in bare.metrics.text())
            Blocked.go.set()
            await bare.server.wait_until(lambda server: len(server.requests) == 2)
        assert sorted(begun) == ["a", "b"]
