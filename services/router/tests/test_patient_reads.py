"""A line whose bytes cannot be read yet has not been tried: the router waits for the store."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from impala.router.v1 import router_pb2
from libs.clock import ManualClock
from libs.errors import ImpalaError
from libs.objects.errors import AccessDenied, ReadOnly, StoreUnavailable
from services.router.core.ranges import LineAt
from services.router.execution import Execution, Executor, RunOrder
from services.router.identity import Maker

LINE = b"this is no request\n"
TIMEOUT_S = 60.0
AWAY = (StoreUnavailable("s3://b", "it is away"), AccessDenied("s3://b"), ReadOnly("/o", "frozen"))


class AwayStore:
    """Raises for the first reads."""

    def __init__(self, error: ImpalaError, times: int) -> None:
        self.error = error
        self.left = times

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        if self.left:
            self.left -= 1
            raise self.error
        return LINE[start : start + length]


def execution(store: AwayStore, clock: ManualClock) -> Execution:
    nothing: Any = None
    objects: Any = store
    executor = Executor(objects, nothing, Maker(clock), nothing, line_timeout_s=TIMEOUT_S)
    order = RunOrder(
        run_id="run-1",
        epoch=1,
        fleet="f",
        account="ann",
        job_id="job-1",
        model="m",
        endpoint="/v1/chat/completions",
        input_object="files/ann/file-1",
        deadline_unix_ms=0,
        window="batch",
    )
    return Execution(executor, order)


async def result_of(store: AwayStore, clock: ManualClock, step_s: float) -> int:
    """The outcome of one line, with time going on in steps."""
    async with asyncio.timeout(30), execution(store, clock) as running:
        running.hand_out([LineAt(1, 0, len(LINE) - 1)])
        results = running.results()
        answer = asyncio.ensure_future(anext(results))
        while not answer.done():
            sleeping = asyncio.ensure_future(clock.wait_for_sleepers(1))
            await asyncio.wait([answer, sleeping], return_when=asyncio.FIRST_COMPLETED)
            sleeping.cancel()
            clock.advance(step_s)
        (result,) = answer.result()
        await results.aclose()
    return result.outcome


@pytest.mark.parametrize("error", AWAY)
async def test_a_read_is_tried_until_the_store_is_back(error: ImpalaError) -> None:
    store = AwayStore(error, times=5)
    outcome = await result_of(store, ManualClock(), step_s=10.0)
    assert store.left == 0
    assert outcome == router_pb2.LINE_OUTCOME_ERROR, "it was read, and found to be no request"


async def test_a_line_is_handed_back_when_its_time_is_over() -> None:
    store = AwayStore(AWAY[0], times=1000)
    assert await result_of(store, ManualClock(), 10.0) == router_pb2.LINE_OUTCOME_RETRY
    assert store.left > 1000 - 12
