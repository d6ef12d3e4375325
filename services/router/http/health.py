"""/health, /ready, /metrics: for machines that watch, without a key."""

from __future__ import annotations

from collections.abc import Callable

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from services.router.parts import Parts


class HealthRoutes:
    def __init__(self, parts: Parts, is_draining: Callable[[], bool]) -> None:
        self._parts = parts
        self._is_draining = is_draining

    def routes(self) -> list[Route]:
        return [
            Route("/health", self.health, methods=["GET"]),
            Route("/ready", self.ready, methods=["GET"]),
            Route("/metrics", self.metrics, methods=["GET"]),
        ]

    async def health(self, request: Request) -> Response:
        """The process answers."""
        return JSONResponse({"status": "ok"})

    async def ready(self, request: Request) -> Response:
        """A request would be served: some model server serves, and this router does not drain.

        The cluster's state is loaded before the port is open.
        """
        models = sorted(self._parts.fleets.models())
        why = "draining" if self._is_draining() else None if models else "no model server serves"
        if why is not None:
            return JSONResponse({"status": "not ready", "why": why}, 503)
        return JSONResponse({"status": "ready", "models": models})

    async def metrics(self, request: Request) -> Response:
        return Response(self._parts.metrics.text(), media_type="text/plain; version=0.0.4")
