"""JSON bodies: bounded, strict, and refused in words that name the field."""

from __future__ import annotations

from typing import Any

import orjson
from starlette.requests import Request

from services.router.core.errors import BadRequest, RequestError

MAX_BODY_BYTES = 64 << 20


class BodyTooLarge(RequestError):
    """413."""

    status = 413

    def __init__(self, limit: int) -> None:
        super().__init__(
            f"The request's body is larger than {limit} bytes.", None, "request_too_large"
        )


async def read_json(request: Request, *, limit: int = MAX_BODY_BYTES) -> dict[str, Any]:
    """The body as a JSON object; an empty body is an empty object (cancel sends none)."""
    raw = await read_body(request, limit)
    if not raw:
        return {}
    try:
        body = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise BadRequest(
            f"The request's body is not valid JSON ({error.msg}, line {error.lineno} column "
            f"{error.colno}).",
            None,
            "invalid_json",
        ) from None
    if not isinstance(body, dict):
        raise BadRequest("The request's body must be a JSON object.", None, "invalid_type")
    return body


async def read_body(request: Request, limit: int) -> bytes:
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > limit:
        raise BodyTooLarge(limit)
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > limit:
            raise BodyTooLarge(limit)
    return bytes(body)
