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
from starlette.routing import Match, Route

from libs.objects import ObjectStoreError
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
    if error.status_code == 405:
        headers["Allow"] = ", ".join(_allowed(request))
    return failure_response(Failure(error.status_code, INVALID, message, None, code, headers))


def _allowed(request: Request) -> list[str]:
    """Methods of all routes of the path; a framework's 405 knows those of one."""
    routes = [
        route
        for route in request.app.routes
        if isinstance(route, Route) and route.matches(request.scope)[0] is not Match.NONE
    ]
    return sorted({method for route in routes for method in route.methods or ()})


async def on_disconnect(request: Request, error: Exception) -> Response:
    """The client left while it sent; nobody reads this."""
    return Response(status_code=499)


async def on_error(request: Request, error: Exception) -> Response:
    """Everything else that a handler raised."""
    failure = failure_of(error)
    if failure.status == 500:
        log.error("request failed", exc_info=error, extra={"path": request.url.path})
    elif isinstance(error, ObjectStoreError) and failure.status > 500:
        log.error("%s", error.message, extra={"path": request.url.path})
    return failure_response(failure)
