"""JSON bodies: bounded, strict, and refused in words that name the field."""

from __future__ import annotations

from typing import Any

import orjson
from starlette.requests import Request

from services.router.core.errors import BadRequest, RequestError
from services.router.http.held_bytes import hold_of
from services.router.timely import PACE, Pace, timely

MAX_BODY_BYTES = 64 << 20
_MAX_DIGITS = 20
_SHOWN_CHARS = 60


class BodyTooLarge(RequestError):
    """413."""

    status = 413

    def __init__(self, limit: int) -> None:
        super().__init__(
            f"The request's body is larger than {limit} bytes.", None, "request_too_large"
        )


class EncodingUnsupported(RequestError):
    """415."""

    status = 415

    def __init__(self, encoding: str) -> None:
        super().__init__(
            f"The content-encoding {encoding[:_SHOWN_CHARS]!r} is not supported: send the body as "
            "it is.",
            None,
            "unsupported_content_encoding",
        )


class BodyTooSlow(RequestError):
    """408."""

    status = 408

    def __init__(self, pace: Pace) -> None:
        super().__init__(f"The request's body came too slowly: {pace}.", None, "request_timeout")


def check_encoding(request: Request) -> None:
    """Raises EncodingUnsupported for a body that is not sent as it is."""
    encoding = request.headers.get("content-encoding", "").strip()
    if encoding.lower() not in ("", "identity"):
        raise EncodingUnsupported(encoding)


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


async def read_body(request: Request, limit: int, pace: Pace = PACE) -> bytes:
    """Bytes of the body, held for the request.

    Raises EncodingUnsupported, BodyTooLarge or TooManyBytes before more is read than there is room
    for, and BodyTooSlow where they come more slowly than `pace`.
    """
    check_encoding(request)
    hold = hold_of(request.scope)
    limit = min(limit, hold.limit)
    declared = request.headers.get("content-length", "")
    if declared.isdecimal():
        # Digits may be many; what is longer than the limit's own is larger than it.
        size = int(declared[:_MAX_DIGITS])
        if size > limit:
            raise BodyTooLarge(limit)
        hold.check(size)
    body = bytearray()
    async for chunk in timely(request.stream(), BodyTooSlow(pace), pace):
        if len(body) + len(chunk) > limit:
            raise BodyTooLarge(limit)
        hold.take(len(chunk))
        body += chunk
    return bytes(body)
