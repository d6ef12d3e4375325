"""/imp/v1/jobs and /imp/v1/runs."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from libs.records.batch import Job
from services.router.batches import check_metadata
from services.router.core.fields import check_number, missing, read_str
from services.router.core.paging import list_envelope, parse_limit
from services.router.core.request_fields import check_known
from services.router.http.auth import account_of
from services.router.http.body import read_json
from services.router.jobs import MAX_NAME_CHARS, MAX_PRICE
from services.router.parts import Parts
from services.router.views import job_view, run_view

DEFAULT_PAGE, MAX_PAGE = 100, 10_000
_FIELDS = frozenset({"model", "name", "price_per_engine_hour", "metadata"})


class JobRoutes:
    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    def routes(self) -> list[Route]:
        return [
            Route("/imp/v1/jobs", self.create, methods=["POST"]),
            Route("/imp/v1/jobs", self.page, methods=["GET"]),
            Route("/imp/v1/jobs/{id}", self.get, methods=["GET"]),
            Route("/imp/v1/jobs/{id}", self.delete, methods=["DELETE"]),
            Route("/imp/v1/runs", self.runs, methods=["GET"]),
            Route("/imp/v1/runs/{id}", self.run, methods=["GET"]),
        ]

    async def create(self, request: Request) -> Response:
        account = account_of(self._parts, request)
        body = await read_json(request)
        check_known(body, _FIELDS)
        model = read_str(body, "model", MAX_NAME_CHARS)
        if not model:
            raise missing("model")
        check_metadata(body.get("metadata"))
        price = body.get("price_per_engine_hour")
        job = await self._parts.jobs.create(
            account,
            model,
            name=read_str(body, "name", MAX_NAME_CHARS) or "",
            price_per_engine_hour=(
                0.0 if price is None else check_number("price_per_engine_hour", price, 0, MAX_PRICE)
            ),
            metadata=body.get("metadata"),
            idempotency_key=request.headers.get("idempotency-key", ""),
        )
        return JSONResponse(self._view(job))

    async def page(self, request: Request) -> Response:
        account = account_of(self._parts, request)
        query = request.query_params
        page = await self._parts.jobs.page(
            account,
            limit=parse_limit(query.get("limit"), DEFAULT_PAGE, MAX_PAGE),
            after=query.get("after") or "",
        )
        return JSONResponse(list_envelope([self._view(job) for job in page.records], page.has_more))

    async def get(self, request: Request) -> Response:
        account = account_of(self._parts, request)
        return JSONResponse(
            self._view(await self._parts.jobs.load(account, request.path_params["id"]))
        )

    async def delete(self, request: Request) -> Response:
        account = account_of(self._parts, request)
        job_id = request.path_params["id"]
        await self._parts.jobs.delete(account, job_id)
        return JSONResponse({"id": job_id, "object": "job", "deleted": True})

    async def runs(self, request: Request) -> Response:
        account = account_of(self._parts, request)
        query = request.query_params
        page = await self._parts.runs.page(
            account,
            limit=parse_limit(query.get("limit"), DEFAULT_PAGE, MAX_PAGE),
            after=query.get("after") or "",
            job_id=query.get("job_id") or "",
        )
        items = [run_view(each.run, each.status) for each in page.states]
        return JSONResponse(list_envelope(items, page.has_more))

    async def run(self, request: Request) -> Response:
        account = account_of(self._parts, request)
        state = await self._parts.runs.get(account, request.path_params["id"])
        return JSONResponse(run_view(state.run, state.status))

    def _view(self, job: Job) -> dict[str, Any]:
        served = self._parts.fleets.models().get(job.model)
        return job_view(job, served.precision if served else None)
