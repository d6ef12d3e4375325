"""Lines of a batch while it goes on, and what a poll may say of it, with a leader's records put
there by hand."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import httpx
import msgspec
import pytest

from impala.router.v1 import router_pb2, router_pb2_grpc
from libs.cluster.ops import Delete, Put
from libs.records import keys
from libs.records.batch import BatchRecord, LedgerRecord, RunRecord, SegmentRef
from libs.records.segment import encode_line
from libs.rpc import connect
from services.router.tests.conftest import Stage
from services.router.tests.http.test_batches import create, put, record_of

WITHIN_S = 30.0


class Leader:
    """What the leader of a batch with four lines writes, step by step."""

    def __init__(self, stage: Stage, batch: BatchRecord) -> None:
        self._stage = stage
        self.batch = batch
        self.run = RunRecord(
            id=batch.run_id,
            batch_id=batch.id,
            account=batch.account,
            job_id="job-0000aaaa",
            fleet="tiny.float32",
            model="tiny",
            endpoint=batch.endpoint,
            input_object="",
            index_object="",
            total=4,
            ledger=LedgerRecord(price_per_engine_hour=1.0),
            created_at=batch.created_at,
            started_at=float(batch.created_at),
        )

    @classmethod
    async def of_new_batch(cls, stage: Stage) -> Leader:
        batch = await record_of(stage, (await create(stage.openai())).id)
        batch.status = "in_progress"
        await put(stage, batch)
        return cls(stage, batch)

    async def record(self, *lines: bytes) -> None:
        number = len(self.run.segments) + 1
        key = keys.segment_object(self.run.id, 7, number)
        data = b"".join(encode_line(at, _kind(line), line) for at, line in enumerate(lines))
        await self._stage.objects.put(key, data)
        self.run.segments.append(SegmentRef(object=key, lines=len(lines), bytes=len(data)))
        await put(self._stage, self.run)

    async def cancelled(self) -> None:
        await self._stage.client.put(keys.cancel(self.batch.id), b"1700000000")

    async def end(self, status: str = "completed") -> None:
        """As the finalizer does: one transaction."""
        self.batch.status = status
        self.run.completed, self.run.failed = 3, 1
        await self._stage.client.txn(
            [],
            [
                Put(keys.batch("local", self.batch.id), msgspec.json.encode(self.batch)),
                Put(keys.run(self.run.id), msgspec.json.encode(self.run)),
                Delete(keys.cancel(self.batch.id)),
            ],
        )


def _kind(line: bytes) -> str:
    return "error" if b"error" in line else "output"


LINES = [b'{"custom_id":"%d"}' % n for n in range(3)] + [b'{"custom_id":"3","error":{}}']


@pytest.mark.parametrize("after", range(5))
async def test_what_is_recorded_can_be_read_from_any_line_on(stage: Stage, after: int) -> None:
    leader = await Leader.of_new_batch(stage)
    await leader.record(LINES[0], LINES[1])
    await leader.record(LINES[2], LINES[3])
    path = f"/imp/v1/batches/{leader.batch.id}/results"
    answer = await stage.http().get(path, params={"after": str(after)})
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/jsonl"
    assert answer.content == b"".join(line + b"\n" for line in LINES[after:])
    async with connect(stage.router.address) as channel:
        request = router_pb2.ResultsRequest(batch_id=leader.batch.id, after=after)
        found = [line async for line in router_pb2_grpc.BatchesStub(channel).Results(request)]
    assert [line.line_json.encode() for line in found] == LINES[after:]
    assert [line.is_error for line in found] == [b"error" in line for line in LINES[after:]]


@pytest.mark.parametrize("after", [0, 1, 3])
async def test_who_follows_gets_each_line_as_it_is_recorded_and_the_end(
    stage: Stage, after: int
) -> None:
    leader = await Leader.of_new_batch(stage)
    path = f"/imp/v1/batches/{leader.batch.id}/results"
    query = {"after": str(after), "follow": "true"}
    async with (
        asyncio.timeout(WITHIN_S),
        stage.http().stream("GET", path, params=query) as answer,
    ):
        assert answer.status_code == 200
        lines = answer.aiter_lines()
        for number, line in enumerate(LINES):
            await leader.record(line)
            if number >= after:
                assert (await anext(lines)).encode() == line
        await leader.end()
        assert [line async for line in lines] == []


@pytest.mark.parametrize(
    ("query", "param"),
    [({"after": "-1"}, "after"), ({"after": "x"}, "after"), ({"follow": "1"}, "follow")],
)
async def test_a_wrong_query_is_named(stage: Stage, query: dict[str, str], param: str) -> None:
    leader = await Leader.of_new_batch(stage)
    path = f"/imp/v1/batches/{leader.batch.id}/results"
    answer = await stage.http().get(path, params=query)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param


async def test_a_batch_that_is_not_there_is_404(stage: Stage) -> None:
    answer = await stage.http().get("/imp/v1/batches/batch_nope/results?follow=true")
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "batch_not_found")


async def test_results_that_are_lost_break_the_answer_off(stage: Stage) -> None:
    """It never ends as if it were whole."""
    leader = await Leader.of_new_batch(stage)
    await leader.record(*LINES[:2])
    await leader.record(*LINES[2:])
    await stage.objects.delete(leader.run.segments[1].object)
    got = bytearray()
    with pytest.raises(httpx.RemoteProtocolError):
        await _read(stage, f"/imp/v1/batches/{leader.batch.id}/results", got)
    assert got == b"".join(line + b"\n" for line in LINES[:2])


async def _read(stage: Stage, path: str, got: bytearray) -> None:
    async with stage.http().stream("GET", path) as answer:
        async for chunk in answer.aiter_bytes():
            got += chunk


@pytest.mark.parametrize("listed", [False, True])
async def test_a_batch_that_is_cancelling_is_never_seen_to_go_on_again(
    stage: Stage, listed: bool
) -> None:
    """Its end takes the intent away; polls meet it at every moment."""
    http = stage.http()
    for _ in range(20):
        leader = await Leader.of_new_batch(stage)
        await leader.record(*LINES)
        await leader.cancelled()
        polls = asyncio.gather(*(_polls(http, leader.batch.id, listed) for _ in range(4)))
        await leader.end("cancelled")
        for seen in await polls:
            assert [status for status, _, _ in seen] in (
                ["cancelling", "cancelled"],
                ["cancelled"],
            )
            assert seen[-1] == ("cancelled", 3, 1)


async def _polls(
    http: httpx.AsyncClient, batch_id: str, listed: bool
) -> list[tuple[str, int, int]]:
    """What changed from poll to poll, until the end."""
    seen: list[tuple[str, int, int]] = []
    while not seen or seen[-1][0] != "cancelled":
        if listed:
            page = (await http.get("/v1/batches?limit=100")).json()["data"]
            batch: dict[str, Any] = next(each for each in page if each["id"] == batch_id)
        else:
            batch = (await http.get(f"/v1/batches/{batch_id}")).json()
        counts = batch["request_counts"]
        now = (batch["status"], counts["completed"], counts["failed"])
        if not seen or now[0] != seen[-1][0]:
            seen.append(now)
    return seen


async def test_results_that_were_released_come_from_the_files(stage: Stage) -> None:
    leader = await Leader.of_new_batch(stage)
    await leader.record(LINES[0], LINES[3], LINES[1])
    for field, content in (("output", LINES[0] + b"\n" + LINES[1]), ("error", LINES[3])):
        made = await stage.openai().files.create(file=content + b"\n", purpose="user_data")
        setattr(leader.batch, f"{field}_file_id", made.id)
    leader.run.segments, leader.run.released = [], True
    await leader.end()
    path = f"/imp/v1/batches/{leader.batch.id}/results"
    answer = await stage.http().get(path, params={"follow": "true"})
    assert answer.content.splitlines() == [LINES[0], LINES[1], LINES[3]]
    async with connect(stage.router.address) as channel:
        request = router_pb2.ResultsRequest(batch_id=leader.batch.id, after=1)
        with pytest.raises(grpc.RpcError) as caught:
            await anext(aiter(router_pb2_grpc.BatchesStub(channel).Results(request)))
    assert isinstance(caught.value, grpc.aio.AioRpcError)
    assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert leader.batch.output_file_id and leader.batch.output_file_id in str(
        caught.value.details()
    )
