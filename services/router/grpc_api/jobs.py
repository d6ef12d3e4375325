"""impala.router.v1.Jobs and Runs."""

from __future__ import annotations

from impala.router.v1 import router_pb2, router_pb2_grpc
from libs.errors import FailedPrecondition, InvalidArgument
from services.router.batches import check_metadata
from services.router.grpc_api.calling import Context, account_of, as_status, page_limit
from services.router.grpc_api.messages import job_message, page_info, run_message
from services.router.parts import Parts


class JobsApi(router_pb2_grpc.JobsServicer):
    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    async def CreateJob(
        self, request: router_pb2.CreateJobRequest, context: Context
    ) -> router_pb2.Job:
        with as_status():
            account = account_of(self._parts, context)
            if not request.model:
                raise InvalidArgument("A job needs a model.", "MISSING_MODEL", "model")
            check_metadata(dict(request.metadata))

            def may_be_made() -> None:
                if request.require_fleet and not self._parts.fleets.servers(request.model):
                    raise FailedPrecondition(
                        f"No fleet serves the model {request.model!r}.", "NO_FLEET", "model"
                    )

            job = await self._parts.jobs.create(
                account,
                request.model,
                name=request.name,
                price_per_engine_hour=request.price_per_engine_hour,
                metadata=dict(request.metadata),
                idempotency_key=request.idempotency_key,
                may_be_made=may_be_made,
            )
        return job_message(job)

    async def GetJob(self, request: router_pb2.GetJobRequest, context: Context) -> router_pb2.Job:
        with as_status():
            return job_message(
                await self._parts.jobs.load(account_of(self._parts, context), request.id)
            )

    async def ListJobs(
        self, request: router_pb2.ListJobsRequest, context: Context
    ) -> router_pb2.ListJobsResponse:
        with as_status():
            page = await self._parts.jobs.page(
                account_of(self._parts, context),
                limit=page_limit(request.page.limit),
                after=request.page.after,
            )
        return router_pb2.ListJobsResponse(
            jobs=[job_message(job) for job in page.records],
            page=page_info([job.id for job in page.records], page.has_more),
        )

    async def DeleteJob(
        self, request: router_pb2.GetJobRequest, context: Context
    ) -> router_pb2.DeleteJobResponse:
        with as_status():
            await self._parts.jobs.delete(account_of(self._parts, context), request.id)
        return router_pb2.DeleteJobResponse()


class RunsApi(router_pb2_grpc.RunsServicer):
    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    async def GetRun(self, request: router_pb2.GetRunRequest, context: Context) -> router_pb2.Run:
        with as_status():
            return run_message(
                await self._parts.runs.get(account_of(self._parts, context), request.id)
            )

    async def ListRuns(
        self, request: router_pb2.ListRunsRequest, context: Context
    ) -> router_pb2.ListRunsResponse:
        with as_status():
            page = await self._parts.runs.page(
                account_of(self._parts, context),
                limit=page_limit(request.page.limit),
                after=request.page.after,
                job_id=request.job_id,
            )
        return router_pb2.ListRunsResponse(
            runs=[run_message(state) for state in page.states],
            page=page_info([state.run.id for state in page.states], page.has_more),
        )
