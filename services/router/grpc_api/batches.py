"""impala.router.v1.Batches."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator

from impala.router.v1 import router_pb2, router_pb2_grpc
from services.router.batches import NewBatch
from services.router.files import check_expiry_s
from services.router.grpc_api.calling import Context, account_of, as_status, page_limit
from services.router.grpc_api.messages import batch_message, page_info
from services.router.parts import Parts


class BatchesApi(router_pb2_grpc.BatchesServicer):
    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    async def CreateBatch(
        self, request: router_pb2.CreateBatchRequest, context: Context
    ) -> router_pb2.Batch:
        with as_status():
            new = NewBatch(
                input_file_id=request.input_file_id,
                endpoint=request.endpoint,
                completion_window=request.completion_window,
                job_id=request.job_id,
                metadata=dict(request.metadata) or None,
                output_expires_after_s=check_expiry_s(
                    "output_expires_after_s", request.output_expires_after_s
                ),
                idempotency_key=request.idempotency_key,
            )
            account = account_of(self._parts, context)
            return batch_message(await self._parts.batches.create(account, new))

    async def GetBatch(
        self, request: router_pb2.GetBatchRequest, context: Context
    ) -> router_pb2.Batch:
        with as_status():
            account = account_of(self._parts, context)
            return batch_message(await self._parts.batches.get(account, request.id))

    async def ListBatches(
        self, request: router_pb2.ListBatchesRequest, context: Context
    ) -> router_pb2.ListBatchesResponse:
        with as_status():
            page = await self._parts.batches.page(
                account_of(self._parts, context),
                limit=page_limit(request.page.limit),
                after=request.page.after,
            )
        return router_pb2.ListBatchesResponse(
            batches=[batch_message(state) for state in page.states],
            page=page_info([state.record.id for state in page.states], page.has_more),
        )

    async def CancelBatch(
        self, request: router_pb2.GetBatchRequest, context: Context
    ) -> router_pb2.Batch:
        with as_status():
            account = account_of(self._parts, context)
            return batch_message(await self._parts.batches.cancel(account, request.id))

    async def Results(
        self, request: router_pb2.ResultsRequest, context: Context
    ) -> AsyncGenerator[router_pb2.ResultLine, None]:
        with as_status():
            account = account_of(self._parts, context)
            lines = self._parts.results.lines(
                account, request.batch_id, after=request.after, follow=request.follow
            )
            async with contextlib.aclosing(lines) as source:
                async for line in source:
                    yield router_pb2.ResultLine(
                        line_json=line.record.decode(), is_error=line.is_error
                    )
