"""/v1/batches."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from services.router.batches import BatchState, NewBatch
from services.router.core.fields import missing, read_object, wrong_type
from services.router.core.paging import list_envelope, parse_count, parse_flag, parse_limit
from services.router.core.request_fields import check_known, check_tags
from services.router.files import parse_expiry
from services.router.http.auth import account_of
from services.router.http.body import read_json
from services.router.parts import Parts
from services.router.results import Line
from services.router.views import batch_view

DEFAULT_PAGE, MAX_PAGE = 20, 100
_EXPIRES = "output_expires_after"
_FIELDS = frozenset(
    {
        "input_file_id",
        "endpoint",
        "completion_window",
        "job_id",
        "metadata",
        "tags",
        _EXPIRES,
    }
)


class BatchRoutes:
    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    def routes(self) -> list[Route]:
        return [
            Route("/v1/batches", self.create, methods=["POST"]),
            Route("/v1/batches", self.page, methods=["GET"]),
            Route("/v1/batches/{id}", self.get, methods=["GET"]),
            Route("/v1/batches/{id}/cancel", self.cancel, methods=["POST"]),
            Route("/imp/v1/batches/{id}/results", self.results, methods=["GET"]),
        ]

    async def create(self, request: Request) -> Response:
        account = account_of(self._parts, request)
        body = await read_json(request)
        new = new_batch(body, request.headers.get("idempotency-key", ""))
        return self._answer(await self._parts.batches.create(account, new))

    async def page(self, request: Request) -> Response:
        account = account_of(self._parts, request)
        query = request.query_params
        page = await self._parts.batches.page(
            account,
            limit=parse_limit(query.get("limit"), DEFAULT_PAGE, MAX_PAGE),
            after=query.get("after") or "",
        )
        items = [self._view(state) for state in page.states]
        return JSONResponse(list_envelope(items, page.has_more))

    async def get(self, request: Request) -> Response:
        account = account_of(self._parts, request)
        return self._answer(await self._parts.batches.get(account, request.path_params["id"]))

    async def cancel(self, request: Request) -> Response:
        account = account_of(self._parts, request)
        return self._answer(await self._parts.batches.cancel(account, request.path_params["id"]))

    async def results(self, request: Request) -> Response:
        """Lines as the batch's files will have them, in the order they were recorded. A body that
        breaks off is not at its end: ask again `after` what has come."""
        account = account_of(self._parts, request)
        query = request.query_params
        after = parse_count("after", query.get("after"))
        follow = parse_flag("follow", query.get("follow"))
        await self._parts.batches.get(account, request.path_params["id"])
        lines = self._parts.results.lines(
            account, request.path_params["id"], after=after, follow=follow
        )
        return StreamingResponse(_each_with_newline(lines), media_type="application/jsonl")

    def _answer(self, state: BatchState) -> Response:
        return JSONResponse(self._view(state))

    def _view(self, state: BatchState) -> dict[str, Any]:
        return batch_view(state.record, state.run, state.cancel_at)


async def _each_with_newline(lines: AsyncGenerator[Line, None]) -> AsyncGenerator[bytes, None]:
    async with contextlib.aclosing(lines) as source:
        async for line in source:
            yield line.record + b"\n"


def new_batch(body: dict[str, Any], idempotency_key: str) -> NewBatch:
    """Checks names and types; the values are checked where the batch is made."""
    check_known(body, _FIELDS)
    if body.get("tags") is not None:
        check_tags("tags", body["tags"])
    expires = read_object(body, _EXPIRES)
    return NewBatch(
        input_file_id=_text(body, "input_file_id"),
        endpoint=_text(body, "endpoint"),
        completion_window=_text(body, "completion_window"),
        job_id=_text(body, "job_id", required=False),
        metadata=body.get("metadata"),
        output_expires_after_s=None if expires is None else _expiry(expires),
        idempotency_key=idempotency_key,
    )


def _expiry(given: dict[str, Any]) -> int:
    check_known(given, frozenset({"anchor", "seconds"}), f"{_EXPIRES}.")
    return parse_expiry(_EXPIRES, given.get("anchor"), given.get("seconds"))


def _text(body: dict[str, Any], name: str, *, required: bool = True) -> str:
    value = body.get(name)
    if value is None:
        if required:
            raise missing(name)
        return ""
    if not isinstance(value, str):
        raise wrong_type(name, "a string", value)
    return value
