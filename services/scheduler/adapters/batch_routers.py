"""Routers' batch work over gRPC."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import grpc
import msgspec

from impala.common.v1 import common_pb2
from impala.router.v1 import router_pb2, router_pb2_grpc
from libs.cluster.secret import METADATA_KEY
from libs.errors import DataLoss, Internal, Unavailable
from libs.rpc import from_rpc_error, keep_status, stream
from services.scheduler.adapters.channels import Channels
from services.scheduler.core.run import Line, Outcome
from services.scheduler.core.usage import Usage
from services.scheduler.ports import (
    ExecuteAsk,
    FileFault,
    IndexAsk,
    Indexed,
    LineAnswer,
    LineStream,
)

INDEX_S = 600.0
"""A file of the largest size is indexed in far less."""

CONNECT_S = 5.0

Metadata = tuple[tuple[str, str], ...]

_record = msgspec.json.Decoder(dict[str, msgspec.Raw])

_OUTCOMES = {
    router_pb2.LINE_OUTCOME_OUTPUT: Outcome.OUTPUT,
    router_pb2.LINE_OUTCOME_ERROR: Outcome.ERROR,
    router_pb2.LINE_OUTCOME_RETRY: Outcome.RETRY,
    router_pb2.LINE_OUTCOME_LOST: Outcome.LOST,
    router_pb2.LINE_OUTCOME_CANCELLED: Outcome.CANCELLED,
}


class GrpcBatchRouters:
    def __init__(self, channels: Channels, secret: Callable[[], str]) -> None:
        """secret: the cluster's as it is now, which routers want to see."""
        self._channels = channels
        self._secret = secret

    @property
    def _metadata(self) -> Metadata:
        return ((METADATA_KEY, self._secret()),)

    async def index(self, address: str, ask: IndexAsk) -> Indexed:
        stub = router_pb2_grpc.BatchWorkerStub(self._channels.to(address))
        request = router_pb2.IndexRequest(
            run_id=ask.run_id,
            epoch=ask.epoch,
            account=ask.account,
            input_object=ask.input_object,
            endpoint=ask.endpoint,
            job_id=ask.job_id,
            index_object=ask.index_object,
            input_bytes=ask.input_bytes,
            input_digest=ask.input_digest,
        )
        messages = stream(stub.Index, request, timeout_s=INDEX_S, metadata=self._metadata)
        async with contextlib.aclosing(messages):  # type: ignore[type-var]
            async for progress in messages:
                if progress.HasField("done"):
                    return _indexed(progress.done)
        raise Unavailable("The router ended the index stream without a result.", "STREAM_ENDED")

    def execute(self, address: str, ask: ExecuteAsk) -> AbstractAsyncContextManager[LineStream]:
        return self._execute(address, ask)

    @asynccontextmanager
    async def _execute(self, address: str, ask: ExecuteAsk) -> AsyncIterator[LineStream]:
        stub = router_pb2_grpc.BatchWorkerStub(self._channels.to(address))
        lines = _Lines(stub, ask, self._metadata)
        try:
            await lines.connected()
            yield lines
        finally:
            lines.close()


class _Lines:
    """No deadline: the stream lives as long as run and router do, and keepalive pings end it when
    the router's machine is gone."""

    def __init__(
        self, stub: router_pb2_grpc.BatchWorkerAsyncStub, ask: ExecuteAsk, metadata: Metadata
    ) -> None:
        self._requests = _Requests()
        self._requests.put(router_pb2.ExecuteRequest(start=_start(ask)))
        self._call = keep_status(stub.Execute(self._requests, metadata=metadata))

    async def connected(self) -> None:
        """Returns once the router is reached: a dead one must not be handed lines."""
        try:
            async with asyncio.timeout(CONNECT_S):
                await self._call.wait_for_connection()
        except TimeoutError:
            raise Unavailable("The router does not answer.", "NO_CONNECTION") from None
        except grpc.aio.AioRpcError as failure:
            raise from_rpc_error(failure) from failure

    def send(self, lines: Sequence[Line]) -> None:
        refs = [router_pb2.LineRef(line=x.line, offset=x.offset, length=x.length) for x in lines]
        self._requests.put(router_pb2.ExecuteRequest(lines=refs))

    def cancel(self, lines: Sequence[int]) -> None:
        self._requests.put(router_pb2.ExecuteRequest(cancel_lines=lines))

    async def answers(self) -> AsyncIterator[list[LineAnswer]]:
        try:
            async for response in self._call:
                yield [_answer(result) for result in response.results]
        except grpc.aio.AioRpcError as failure:
            raise from_rpc_error(failure) from failure
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            # grpc.aio says so too when the channel is closed under the call.
            raise Unavailable("The stream was closed.", "CHANNEL_CLOSED") from None

    def close(self) -> None:
        self._call.cancel()
        self._requests.end()


class _Requests:
    """What is sent on a stream, in order. grpc.aio reads it in a task that it cancels with a call
    that runs, but forgets with one that has ended: `end` lets that task come to its own end. It is
    no generator, because one that is suspended would be closed by the garbage collector."""

    def __init__(self) -> None:
        self._waiting: asyncio.Queue[router_pb2.ExecuteRequest | None] = asyncio.Queue()

    def put(self, request: router_pb2.ExecuteRequest) -> None:
        self._waiting.put_nowait(request)

    def end(self) -> None:
        """Nothing more is sent; what was put before may or may not be."""
        self._waiting.put_nowait(None)

    def __aiter__(self) -> _Requests:
        return self

    async def __anext__(self) -> router_pb2.ExecuteRequest:
        request = await self._waiting.get()
        if request is None:
            raise StopAsyncIteration
        return request


def _start(ask: ExecuteAsk) -> router_pb2.ExecuteStart:
    return router_pb2.ExecuteStart(
        run_id=ask.run_id,
        batch_id=ask.batch_id,
        epoch=ask.epoch,
        fleet=ask.fleet,
        account=ask.account,
        job_id=ask.job_id,
        model=ask.model,
        endpoint=ask.endpoint,
        input_object=ask.input_object,
        deadline_unix_ms=ask.deadline_unix_ms,
        window=common_pb2.WINDOW_BATCH,
    )


def _answer(result: router_pb2.LineResult) -> LineAnswer:
    outcome = _OUTCOMES.get(result.outcome)
    if outcome is None:
        raise Internal(f"A router answered line {result.line} without an outcome.", "NO_OUTCOME")
    if outcome in (Outcome.OUTPUT, Outcome.ERROR):
        _check_record(result)
    return LineAnswer(
        line=result.line,
        outcome=outcome,
        record=result.record,
        usage=Usage(
            result.usage.prompt_tokens,
            result.usage.cached_tokens,
            result.usage.completion_tokens,
            result.usage.reasoning_tokens,
        ),
        trace_id=result.trace_id,
        total_s=result.total_s,
        custom_id=result.custom_id.decode("utf-8", "replace"),
        reason=result.reason,
        retry_after_s=result.retry_after_s,
    )


def _check_record(result: router_pb2.LineResult) -> None:
    """One damaged record must not make a segment, and with it the run, unreadable."""
    try:
        _record.decode(result.record)
    except msgspec.MsgspecError:
        message = f"A router answered line {result.line} with a record that is no JSON object."
        raise DataLoss(message, "BAD_RECORD") from None
    if b"\n" in result.record or not result.record.isascii():
        raise DataLoss(
            f"A router answered line {result.line} with more than a line of ASCII.", "BAD_RECORD"
        )


def _indexed(done: router_pb2.IndexDone) -> Indexed:
    faults = tuple(
        FileFault(error.code, error.message, error.param or None, error.line or None)
        for error in done.errors
    )
    return Indexed(done.lines, done.job_id, done.model, faults, done.index_digest)
