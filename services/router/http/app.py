"""The HTTP application: routes, errors as envelopes, request ids."""

from __future__ import annotations

from collections.abc import Callable

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp

from libs.cluster.errors import ClusterError
from libs.errors import ImpalaError
from services.router.core.errors import RequestError
from services.router.http.batches import BatchRoutes
from services.router.http.completions import CompletionRoutes
from services.router.http.errors import on_disconnect, on_error, on_http_exception
from services.router.http.farewell import Farewell
from services.router.http.files import FileRoutes
from services.router.http.health import HealthRoutes
from services.router.http.held_bytes import HeldBytes
from services.router.http.jobs import JobRoutes
from services.router.http.models import ModelRoutes
from services.router.http.request_id import RequestIds
from services.router.identity import Maker
from services.router.parts import Parts


def http_app(
    parts: Parts, maker: Maker, *, request_timeout_s: float, is_draining: Callable[[], bool]
) -> ASGIApp:
    """request_timeout_s: how long a single request may take in all."""
    routes = [
        *HealthRoutes(parts, is_draining).routes(),
        *ModelRoutes(parts, maker.unix_s()).routes(),
        *FileRoutes(parts).routes(),
        *BatchRoutes(parts).routes(),
        *CompletionRoutes(parts, request_timeout_s).routes(),
        *JobRoutes(parts).routes(),
    ]
    app = Starlette(
        routes=routes,
        exception_handlers={
            HTTPException: on_http_exception,
            RequestError: on_error,
            ImpalaError: on_error,
            ClusterError: on_error,
            TimeoutError: on_error,
            ClientDisconnect: on_disconnect,
            Exception: on_error,
        },
    )
    app.router.redirect_slashes = False
    held = HeldBytes(RequestIds(app, maker), parts.request_bytes, parts.access)
    return Farewell(held, is_draining)
