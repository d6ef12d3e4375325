"""Who leaves is not worked for: a disconnect reaches the engine, and only for work that goes on."""

from __future__ import annotations

import asyncio
import json
from urllib.parse import urlsplit

import pytest

from services.router.testing import Gate
from services.router.tests.conftest import MODEL, Stage


async def open_request(stage: Stage, stream: bool) -> asyncio.StreamWriter:
    """Sends a request on a raw socket; the answer is read by nobody."""
    url = urlsplit(stage.router.http_url)
    _, writer = await asyncio.open_connection(url.hostname, url.port)
    body = json.dumps(
        {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}], "stream": stream}
    ).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    await writer.drain()
    return writer


@pytest.mark.parametrize("stream", [False, True])
async def test_a_disconnect_while_generating_cancels_the_step(stage: Stage, stream: bool) -> None:
    stage.server.gate = Gate(open_after=3)
    writer = await open_request(stage, stream)
    await stage.server.wait_until(lambda server: len(server.running) == 1)
    writer.close()
    await stage.server.wait_until(lambda server: len(server.cancelled) == 1)
    assert stage.server.running == set()


async def test_a_disconnect_while_waiting_for_a_grant_gives_the_place_up(stage: Stage) -> None:
    stage.scheduler.hold = asyncio.Event()
    writer = await open_request(stage, stream=False)
    await stage.scheduler.wait_until(lambda scheduler: scheduler.waiting == 1)
    writer.close()
    await stage.scheduler.wait_until(lambda scheduler: scheduler.waiting == 0)
    assert stage.server.requests == []


async def test_a_request_that_ended_well_cancels_nothing(stage: Stage) -> None:
    http = stage.http()
    body = {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}]}
    for stream in (False, True):
        answer = await http.post("/v1/chat/completions", json={**body, "stream": stream})
        assert answer.status_code == 200
    assert stage.server.cancelled == []
    assert stage.server.aborts == []


async def test_many_clients_that_leave_hold_nothing(stage: Stage) -> None:
    stage.server.gate = Gate(open_after=1)
    writers = [await open_request(stage, stream=number % 2 == 0) for number in range(40)]
    await stage.server.wait_until(lambda server: len(server.running) == 40)
    for writer in writers:
        writer.close()
    await stage.server.wait_until(lambda server: not server.running)
    assert len(stage.server.cancelled) == 40
