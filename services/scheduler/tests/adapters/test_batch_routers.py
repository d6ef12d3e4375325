"""A stream to a router leaves nothing behind, however it ends."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from impala.router.v1 import router_pb2, router_pb2_grpc
from libs.errors import Unavailable
from libs.testing.rpc import free_port, serving
from services.scheduler.adapters.batch_routers import GrpcBatchRouters
from services.scheduler.adapters.channels import Channels
from services.scheduler.core.run import Line
from services.scheduler.ports import ExecuteAsk

SECRET = "s" * 43
ASK = ExecuteAsk(
    run_id="run-1",
    batch_id="batch_1",
    epoch=1,
    fleet="demo.float32",
    account="local",
    job_id="job-1",
    model="demo",
    endpoint="/v1/chat/completions",
    input_object="in",
    deadline_unix_ms=0,
)


class Router(router_pb2_grpc.BatchWorkerServicer):
    """Answers the first line; what it does with the second is the test's to say."""

    def __init__(self, breaks: bool) -> None:
        self._breaks = breaks
        self.busy = asyncio.Event()

    async def Execute(
        self, request_iterator: AsyncIterator[router_pb2.ExecuteRequest], context: Any
    ) -> AsyncIterator[router_pb2.ExecuteResponse]:
        async for request in request_iterator:
            for ref in request.lines:
                if ref.line == 1:
                    result = router_pb2.LineResult(
                        line=1, outcome=router_pb2.LINE_OUTCOME_OUTPUT, record=b"{}"
                    )
                    yield router_pb2.ExecuteResponse(results=[result])
                elif self._breaks:
                    await context.abort(grpc.StatusCode.UNAVAILABLE, "the router goes away")
                else:
                    self.busy.set()


@pytest.fixture
async def complaints() -> AsyncIterator[list[dict[str, Any]]]:
    """What the event loop had to say about tasks and generators that were left behind."""
    heard: list[dict[str, Any]] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: heard.append(context))
    yield heard
    loop.set_exception_handler(None)


async def settled(before: set[asyncio.Task[Any]]) -> None:
    """Returns once no task is left that was not there before."""
    gc.collect()
    async with asyncio.timeout(10):
        while left := asyncio.all_tasks() - before:
            await asyncio.wait(left)
    gc.collect()


@pytest.mark.parametrize("end", ["the router breaks it", "the router dies", "the leader leaves"])
async def test_nothing_is_left_of_a_stream(end: str, complaints: list[dict[str, Any]]) -> None:
    router, channels = Router(breaks=end == "the router breaks it"), Channels()
    add = router_pb2_grpc.add_BatchWorkerServicer_to_server
    before = asyncio.all_tasks()
    async with serving((add, router)) as rpc:
        async with GrpcBatchRouters(channels, lambda: SECRET).execute(rpc.address, ASK) as stream:
            stream.send([Line(1, 0, 1), Line(2, 1, 1)])
            answers = stream.answers()
            assert [answer.line for answer in await anext(answers)] == [1]
            if end == "the router dies":
                await router.busy.wait()
                await rpc.server.stop(None)
            if end != "the leader leaves":
                with pytest.raises(Unavailable):
                    await anext(answers)
        await answers.aclose()  # type: ignore[attr-defined]
        gc.collect()
    await channels.close()
    await settled(before)
    assert complaints == []


async def test_nothing_is_left_of_a_stream_that_never_began(
    complaints: list[dict[str, Any]],
) -> None:
    channels, before = Channels(), asyncio.all_tasks()
    routers = GrpcBatchRouters(channels, lambda: SECRET)
    with pytest.raises(Unavailable):
        async with routers.execute(f"127.0.0.1:{free_port()}", ASK):
            raise AssertionError("nobody is there")
    await channels.close()
    await settled(before)
    assert complaints == []
