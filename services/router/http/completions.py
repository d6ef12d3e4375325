"""/v1/chat/completions and /v1/completions."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncGenerator, Coroutine, Mapping
from typing import Any, TypeVar

import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from libs.errors import Unimplemented
from services.router.call import Call, Trace
from services.router.core.params import CHAT, COMPLETIONS
from services.router.core.responses import SSE_DONE, sse_error, sse_event
from services.router.failures import failure_of
from services.router.http.auth import account_of
from services.router.http.body import read_json
from services.router.http.request_id import request_id_of
from services.router.http.stream import ClientGone, EventStream, until_disconnect
from services.router.parts import Parts
from services.router.prepare import Prepared

log = logging.getLogger(__name__)

NOT_YET = ("/v1/embeddings", "/v1/responses", "/v1/messages")
WEIGHT_VERSION_HEADER = "x-impala-weight-version"
TRACE_HEADER = "x-impala-trace-id"
MAX_HEADER_CHARS = 256

T = TypeVar("T")


class CompletionRoutes:
    def __init__(self, parts: Parts, within_s: float) -> None:
        self._parts = parts
        self._within_s = within_s

    def routes(self) -> list[Route]:
        return [
            *(Route(path, self.complete, methods=["POST"]) for path in (CHAT, COMPLETIONS)),
            *(Route(path, self.not_yet, methods=["POST"]) for path in NOT_YET),
        ]

    async def not_yet(self, request: Request) -> Response:
        account_of(self._parts, request)
        raise Unimplemented(f"{request.url.path} is not implemented yet.", "NOT_IMPLEMENTED")

    async def complete(self, request: Request) -> Response:
        account = account_of(self._parts, request)
        call = Call(
            request_id=request_id_of(request.scope),
            account=account,
            endpoint=request.url.path,
            body=await read_json(request),
            within_s=self._within_s,
            window=request.headers.get("x-impala-window"),
            trace=trace_of(request.headers),
        )
        if call.body.get("stream") is True:
            return await self._streamed(request, call)
        return await self._whole(request, call)

    async def _streamed(self, request: Request, call: Call) -> Response:
        prepared = await self._while_there(request, call, self._parts.completions.prepare(call))
        return _gone() if prepared is None else _Streamed(self._parts, prepared)

    async def _whole(self, request: Request, call: Call) -> Response:
        async def work() -> Response:
            prepared = await self._parts.completions.prepare(call)
            reply = await self._parts.completions.complete(prepared)
            headers = {WEIGHT_VERSION_HEADER: reply.weight_version}
            if reply.trace_id:
                headers[TRACE_HEADER] = reply.trace_id
            return Response(orjson.dumps(reply.body), 200, headers, "application/json")

        response = await self._while_there(request, call, work())
        if response is None:
            return _gone()
        self._count(call, 200)
        return response

    async def _while_there(
        self, request: Request, call: Call, work: Coroutine[Any, Any, T]
    ) -> T | None:
        """The work's result; None where the client left before it. What did not succeed is
        counted."""
        try:
            return await until_disconnect(request.receive, work)
        except ClientGone:
            self._count(call, 499)
            return None
        except Exception as error:
            self._count(call, failure_of(error).status)
            raise

    def _count(self, call: Call, status: int) -> None:
        self._parts.completions.count(call, status)


def _gone() -> Response:
    return Response(status_code=499)


class _Streamed(Response):
    """Chunks as server-sent events. A failure before the first one is a plain error answer; a
    later one is the last event, and then `[DONE]` does not come."""

    def __init__(self, parts: Parts, prepared: Prepared) -> None:
        self._parts = parts
        self._prepared = prepared
        self.background = None
        self._status = 499
        self._weight_version: str | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        chunks = self._parts.completions.chunks(self._prepared)
        app: ASGIApp = EventStream(self._events(chunks), self._told, self._early_headers)
        try:
            await app(scope, receive, send)
        except Exception as error:
            self._status = failure_of(error).status
            raise
        finally:
            self._parts.completions.count(self._prepared.call, self._status)

    def _early_headers(self) -> dict[str, str]:
        version = self._weight_version
        return {WEIGHT_VERSION_HEADER: version} if version else {}

    async def _events(
        self, chunks: AsyncGenerator[dict[str, Any], None]
    ) -> AsyncGenerator[bytes, None]:
        async with contextlib.aclosing(chunks) as source:
            async for chunk in source:
                self._weight_version = chunk.get("weight_version")
                yield sse_event(chunk)
        self._status = 200
        yield SSE_DONE

    def _told(self, error: Exception) -> bytes:
        """A failure after the response has begun."""
        failure = failure_of(error)
        if failure.status == 500:
            log.error("a stream broke", exc_info=error)
        self._status = failure.status
        return sse_error(failure.envelope())


def trace_of(headers: Mapping[str, str]) -> Trace:
    """The x-impala-* headers, cut where a client sends a novel."""
    return Trace(
        trace_id=headers.get(TRACE_HEADER, "")[:MAX_HEADER_CHARS],
        parent_trace_id=headers.get("x-impala-parent-trace-id", "")[:MAX_HEADER_CHARS],
        tool=headers.get("x-impala-tool", "")[:MAX_HEADER_CHARS],
    )
