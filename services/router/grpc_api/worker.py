"""impala.router.v1.BatchWorker: spoken by the scheduler's leaders only.

The port is the clients' too, so a caller shows the cluster's secret; an API key is none. What it
names is still held against what it says: an account's own file, a run's own index.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator

from impala.common.v1 import common_pb2
from impala.router.v1 import router_pb2, router_pb2_grpc
from libs.cluster.secret import METADATA_KEY
from libs.errors import InvalidArgument, Unauthenticated
from libs.records import keys
from services.router.core.ranges import LineAt
from services.router.core.windows import ASAP, BATCH, FLEX, STANDARD
from services.router.execution import Execution, RunOrder
from services.router.grpc_api.calling import Context, as_status, metadata_of
from services.router.indexing import DEFAULT_MAX_ERRORS, Indexed, IndexOrder
from services.router.parts import Parts

_WINDOWS = {
    common_pb2.WINDOW_ASAP: ASAP,
    common_pb2.WINDOW_STANDARD: STANDARD,
    common_pb2.WINDOW_FLEX: FLEX,
}


class BatchWorkerApi(router_pb2_grpc.BatchWorkerServicer):
    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    async def Index(
        self, request: router_pb2.IndexRequest, context: Context
    ) -> AsyncGenerator[router_pb2.IndexProgress, None]:
        self._let_in(context)
        _check_input(request.account, request.input_object)
        if request.index_object != keys.index_object(request.run_id) or "/" in request.run_id:
            raise InvalidArgument(
                "The index is not the run's own.", "INDEX_OBJECT_FOREIGN", "index_object"
            )
        order = IndexOrder(
            epoch=request.epoch,
            account=request.account,
            input_object=request.input_object,
            endpoint=request.endpoint,
            job_id=request.job_id,
            index_object=request.index_object,
            input_bytes=request.input_bytes,
            input_digest=request.input_digest,
            max_errors=request.max_errors or DEFAULT_MAX_ERRORS,
        )
        with as_status():
            async with contextlib.aclosing(self._parts.indexer.index(order)) as source:
                async for progress in source:
                    yield router_pb2.IndexProgress(
                        bytes_done=progress.bytes_done,
                        bytes_total=progress.bytes_total,
                        lines=progress.lines,
                        done=None if progress.done is None else _done(progress.done),
                    )

    async def Execute(
        self, request_iterator: AsyncIterator[router_pb2.ExecuteRequest], context: Context
    ) -> AsyncGenerator[router_pb2.ExecuteResponse, None]:
        self._let_in(context)
        first = await anext(aiter(request_iterator), None)
        if first is None or not first.HasField("start"):
            raise InvalidArgument("The first message must have `start`.", "NO_START", "start")
        _check_input(first.start.account, first.start.input_object)
        with as_status():
            started = await self._parts.executor.start(_order(first.start))
        async with started as execution:
            _take(execution, first)
            reading = asyncio.create_task(_read(execution, request_iterator))
            try:
                async with contextlib.aclosing(execution.results()) as source:
                    async for results in source:
                        yield router_pb2.ExecuteResponse(results=results)
                await reading
            finally:
                reading.cancel()
                await asyncio.gather(reading, return_exceptions=True)

    def _let_in(self, context: Context) -> None:
        """Raises Unauthenticated for whoever is no member of the cluster."""
        if not self._parts.cluster_secret.lets_in(metadata_of(context).get(METADATA_KEY, "")):
            raise Unauthenticated(
                "Only members of the cluster may call this: its secret is in etcd.", "NO_MEMBER"
            )


def _check_input(account: str, input_object: str) -> None:
    if not keys.is_file_object(account, input_object):
        raise InvalidArgument(
            "The input is not a file of the account's.", "INPUT_OBJECT_FOREIGN", "input_object"
        )


async def _read(execution: Execution, requests: AsyncIterator[router_pb2.ExecuteRequest]) -> None:
    """Until the leader closes its side; then what runs is finished. The results end with it."""
    try:
        async for request in requests:
            _take(execution, request)
        await execution.finish()
    finally:
        execution.close()


def _take(execution: Execution, request: router_pb2.ExecuteRequest) -> None:
    execution.hand_out([LineAt(ref.line, ref.offset, ref.length) for ref in request.lines])
    execution.cancel(request.cancel_lines)


def _order(start: router_pb2.ExecuteStart) -> RunOrder:
    return RunOrder(
        run_id=start.run_id,
        epoch=start.epoch,
        fleet=start.fleet,
        account=start.account,
        job_id=start.job_id,
        model=start.model,
        endpoint=start.endpoint,
        input_object=start.input_object,
        deadline_unix_ms=start.deadline_unix_ms,
        window=_WINDOWS.get(start.window, BATCH),
    )


def _done(indexed: Indexed) -> router_pb2.IndexDone:
    return router_pb2.IndexDone(
        lines=indexed.lines,
        errors=[
            router_pb2.BatchError(
                code=error.code,
                message=error.message,
                param=error.param or "",
                line=error.line or 0,
            )
            for error in indexed.errors
        ],
        job_id=indexed.job_id,
        model=indexed.model,
        input_bytes=indexed.input_bytes,
        index_digest=indexed.index_digest,
    )
