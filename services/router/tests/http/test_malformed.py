"""What is no HTTP gets the envelope as well, and a connection cannot make the router collect."""

from __future__ import annotations

import asyncio
import json
from urllib.parse import urlsplit

import pytest

from services.router.http.protocol import MAX_HEAD_BYTES
from services.router.tests.conftest import Stage

POST = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n"


async def answer_to(stage: Stage, *pieces: bytes) -> tuple[int, dict[str, object]]:
    """Status and error of what comes back; the pieces are sent one by one."""
    url = urlsplit(stage.router.http_url)
    reader, writer = await asyncio.open_connection(url.hostname, url.port)
    async with asyncio.timeout(10):
        try:
            for piece in pieces:
                writer.write(piece)
                await writer.drain()
            raw = await reader.read()
        finally:
            writer.close()
    head, _, body = raw.partition(b"\r\n\r\n")
    assert b"content-type: application/json" in head
    error = json.loads(body)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return int(head.split()[1]), error


@pytest.mark.parametrize(
    "sent",
    [
        b"GARBAGE\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET  HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nno colon here\r\n\r\n",
        POST + b"content-length: 5x\r\n\r\n",
        POST + b"content-length: 1\r\ncontent-length: 2\r\n\r\n",
        POST + b"transfer-encoding: chunked\r\n\r\nZZ\r\n",
        POST + b"transfer-encoding: chunked\r\n\r\n2\r\n{}}}\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00",
    ],
)
async def test_what_is_no_http_is_400_in_the_envelope(stage: Stage, sent: bytes) -> None:
    status, error = await answer_to(stage, sent)
    assert (status, error["code"]) == (400, "malformed_http")


BIG = b"x" * MAX_HEAD_BYTES
# The last piece goes over the bound: what a server that closes has not read makes a reset of it.
ENDLESS = [b"x" * 4096] * (MAX_HEAD_BYTES // 4096)


@pytest.mark.parametrize(
    "pieces",
    [
        [POST + b"a: " + BIG + b"\r\n\r\n"],
        [b"GET /" + BIG + b" HTTP/1.1\r\n\r\n"],
        [POST + b"a123: 45\r\n" * (MAX_HEAD_BYTES // 10) + b"\r\n"],
        [POST + b"a: ", *ENDLESS],
        [b"GET /", *ENDLESS],
    ],
)
async def test_a_head_that_is_too_large_or_never_ends_is_431(
    stage: Stage, pieces: list[bytes]
) -> None:
    status, error = await answer_to(stage, *pieces)
    assert (status, error["code"]) == (431, "headers_too_large")


async def test_a_trailer_that_never_ends_is_431(stage: Stage) -> None:
    url = urlsplit(stage.router.http_url)
    reader, writer = await asyncio.open_connection(url.hostname, url.port)
    try:
        async with asyncio.timeout(10):
            writer.write(POST + b"expect: 100-continue\r\ntransfer-encoding: chunked\r\n\r\n")
            assert b"100 Continue" in await reader.readuntil(b"\r\n\r\n")
            writer.write(b"0\r\na: " + b"".join(ENDLESS))
            assert (await reader.read()).startswith(b"HTTP/1.1 431 ")
    finally:
        writer.close()


async def test_a_large_head_within_the_bound_is_fine(stage: Stage) -> None:
    headers = {"a": "x" * (MAX_HEAD_BYTES - 4096)}
    assert (await stage.http().get("/health", headers=headers)).status_code == 200


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        ("PUT", "/v1/files", "GET, HEAD, POST"),
        ("POST", "/v1/files/file-x", "DELETE, GET, HEAD"),
        ("DELETE", "/v1/batches", "GET, HEAD, POST"),
        ("PATCH", "/imp/v1/jobs/job-x", "DELETE, GET, HEAD"),
        ("GET", "/v1/chat/completions", "POST"),
    ],
)
async def test_a_405_lists_all_methods_of_its_path(
    stage: Stage, method: str, path: str, allow: str
) -> None:
    answer = await stage.http().request(method, path)
    assert answer.status_code == 405
    assert answer.headers["allow"] == allow
