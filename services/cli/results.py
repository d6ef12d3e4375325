"""Finished lines of a batch as they come, over HTTP or gRPC."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import NamedTuple

import grpc
import orjson

from impala.router.v1 import router_pb2, router_pb2_grpc
from libs.errors import ImpalaError, Unavailable
from libs.rpc import stream, was_cut
from services.cli.client import Client, Quiet
from services.cli.errors import ApiError, NotReachable

FOLLOW_S = 365 * 86_400.0
RETRY_S = 0.5
TRIES = 120


class Line(NamedTuple):
    text: str
    """As in the output or error file."""
    is_error: bool


Source = Callable[[int], AsyncGenerator[Line, None]]
"""The lines without the first so many, until the batch has ended."""


async def follow_results(source: Source, *, errors: bool) -> None:
    """Writes each line of the kind to stdout once; goes on where it was when the router is started
    again."""
    seen, tries = 0, 0
    while True:
        try:
            async with aclosing(source(seen)) as lines:
                async for line in lines:
                    seen, tries = seen + 1, 0
                    if line.is_error == errors:
                        sys.stdout.write(line.text + "\n")
                        sys.stdout.flush()
            return
        except Quiet:
            continue
        except (NotReachable, ApiError, ImpalaError) as error:
            tries += 1
            if not _may_pass(error) or tries >= TRIES:
                raise
            await asyncio.sleep(RETRY_S)


def over_http(client: Client, batch_id: str) -> Source:
    async def source(after: int) -> AsyncGenerator[Line, None]:
        async with aclosing(client.results(batch_id, after)) as lines:
            async for line in lines:
                yield Line(line.decode(), _is_error(line))

    return source


def over_grpc(channel: grpc.aio.Channel, batch_id: str, api_key: str) -> Source:
    metadata = [("authorization", f"Bearer {api_key}")] if api_key else []
    stub = router_pb2_grpc.BatchesStub(channel)

    async def source(after: int) -> AsyncGenerator[Line, None]:
        request = router_pb2.ResultsRequest(batch_id=batch_id, follow=True, after=after)
        messages = stream(stub.Results, request, timeout_s=FOLLOW_S, metadata=metadata)
        async with aclosing(messages) as lines:  # type: ignore[type-var]
            async for line in lines:
                yield Line(line.line_json, line.is_error)

    return source


def _is_error(line: bytes) -> bool:
    """Whether it belongs in the error file: it has no answer, or one that is an HTTP error."""
    response = orjson.loads(line).get("response")
    return response is None or not 200 <= response["status_code"] < 300


def _may_pass(error: Exception) -> bool:
    """The router is away, or on its way back."""
    if isinstance(error, ApiError):
        return error.status in (429, 500, 502, 503, 504)
    if isinstance(error, ImpalaError) and (was_cut(error) or error.reason == "UNKNOWN"):
        return True  # UNKNOWN: of a proxy's, or of a stream that ended without a status
    return isinstance(error, NotReachable | Unavailable)
