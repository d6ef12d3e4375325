"""/v1/models."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from libs.records.members import ModelServerInfo
from services.router.domain_errors import NoSuchModel
from services.router.http.auth import account_of
from services.router.parts import Parts


class ModelRoutes:
    def __init__(self, parts: Parts, started_at: int) -> None:
        """started_at: Unix seconds; stands for the models' creation, which nobody records."""
        self._parts = parts
        self._started_at = started_at

    def routes(self) -> list[Route]:
        # A hub id has a slash in it.
        return [
            Route("/v1/models", self.page, methods=["GET"]),
            Route("/v1/models/{id:path}", self.get, methods=["GET"]),
        ]

    async def page(self, request: Request) -> Response:
        account_of(self._parts, request)
        models = sorted(self._parts.fleets.models().items())
        data = [self._view(name, info) for name, info in models]
        return JSONResponse({"object": "list", "data": data})

    async def get(self, request: Request) -> Response:
        account_of(self._parts, request)
        name = request.path_params["id"]
        info = self._parts.fleets.models().get(name)
        if info is None:
            raise NoSuchModel(name)
        return JSONResponse(self._view(name, info))

    def _view(self, name: str, info: ModelServerInfo) -> dict[str, Any]:
        return {
            "id": name,
            "object": "model",
            "created": self._started_at,
            "owned_by": "impala",
            "precision": info.precision,
            "max_context": info.max_context,
            "weight_seq": info.weight_seq,
            "weight_digest": info.weight_digest or None,
        }
