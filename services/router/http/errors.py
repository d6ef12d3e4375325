"""Every failure as an HTTP answer with OpenAI's error envelope.

`{"error": {"message", "type", "param", "code"}}`: anything else (a framework's `detail`, HTML)
reaches users of the official client without message and code.
"""

from __future__ import annotations

import logging

import orjson
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from services.router.failures import INVALID, Failure, failure_of

log = logging.getLogger(__name__)


def error_response(error: BaseException) -> Response:
    return failure_response(failure_of(error))


def failure_response(failure: Failure) -> Response:
    return Response(
        orjson.dumps(failure.envelope()),
        failure.status,
        dict(failure.headers),
        media_type="application/json",
    )


async def on_http_exception(request: Request, error: Exception) -> Response:
    """Starlette's own 404 and 405."""
    assert isinstance(error, HTTPException)
    known = {
        404: (f"Unknown request URL: {request.method} {request.url.path}.", "unknown_url"),
        405: (f"{request.method} is not allowed on {request.url.path}.", "method_not_allowed"),
    }
    message, code = known.get(error.status_code, (str(error.detail), None))
    headers = dict(error.headers or {})
    return failure_response(Failure(error.status_code, INVALID, message, None, code, headers))


async def on_error(request: Request, error: Exception) -> Response:
    """Everything else that a handler raised."""
    failure = failure_of(error)
    if failure.status == 500:
        log.error("request failed", exc_info=error, extra={"path": request.url.path})
    return failure_response(failure)
