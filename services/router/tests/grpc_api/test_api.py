"""The public gRPC API: the same objects as over HTTP."""

from __future__ import annotations

import json
import math
from collections.abc import AsyncIterator
from typing import Any

import grpc
import msgspec
import pytest
import pytest_asyncio

from impala.common.v1 import common_pb2
from impala.router.v1 import router_pb2, router_pb2_grpc
from libs.records import keys
from libs.records.batch import BatchRecord, LedgerRecord, RunRecord, SegmentRef
from libs.records.segment import encode_segment
from libs.rpc import connect, from_rpc_error
from services.router.testing import Gate
from services.router.tests.conftest import MODEL, Stage

BODY = {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}]}


@pytest_asyncio.fixture(loop_scope="session")
async def channel(stage: Stage) -> AsyncIterator[grpc.aio.Channel]:
    async with connect(stage.router.address) as opened:
        yield opened


def ask(**changes: object) -> router_pb2.CompleteRequest:
    return router_pb2.CompleteRequest(
        endpoint="/v1/chat/completions",
        body_json=json.dumps(BODY | changes),
        headers={"X-Impala-Trace-Id": "t-5"},
    )


async def test_complete_and_stream_complete_say_the_same(
    stage: Stage, channel: grpc.aio.Channel
) -> None:
    stub = router_pb2_grpc.InferenceStub(channel)
    whole = await stub.Complete(ask(stream=True))
    text = json.loads(whole.body_json)["choices"][0]["message"]["content"]
    assert text == "Hello there, agent."
    chunks = [chunk async for chunk in stub.StreamComplete(ask())]
    assert [bool(chunk.request_id) for chunk in chunks] == [True] + [False] * (len(chunks) - 1)
    deltas = [json.loads(chunk.chunk_json)["choices"][0]["delta"] for chunk in chunks]
    assert "".join(delta.get("content", "") for delta in deltas) == text
    assert stage.scheduler.acquired[0].trace_id == "t-5"


async def test_a_bad_field_is_invalid_argument_and_named(channel: grpc.aio.Channel) -> None:
    stub = router_pb2_grpc.InferenceStub(channel)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stub.Complete(ask(temperature=9))
    assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    error = from_rpc_error(caught.value)
    assert (error.field, error.reason) == ("temperature", "INVALID_VALUE")


async def test_a_deadline_reaches_the_engine(stage: Stage, channel: grpc.aio.Channel) -> None:
    stage.server.gate = Gate(open_after=1)
    stub = router_pb2_grpc.InferenceStub(channel)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stub.Complete(ask(), timeout=0.5)
    assert caught.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
    await stage.server.wait_until(lambda server: not server.running)


async def test_jobs_are_created_once_a_key_listed_and_deleted(
    stage: Stage, channel: grpc.aio.Channel
) -> None:
    stub = router_pb2_grpc.JobsStub(channel)
    request = router_pb2.CreateJobRequest(
        model=MODEL, name="mine", metadata={"a": "b"}, idempotency_key="k", require_fleet=True
    )
    job = await stub.CreateJob(request)
    assert job.id.startswith("job-")
    assert len(job.id) == 12
    assert job.price_per_engine_hour == 1.0
    assert await stub.CreateJob(request) == job
    assert await stub.GetJob(router_pb2.GetJobRequest(id=job.id)) == job
    await stage.router_sees_jobs(1)
    listed = await stub.ListJobs(router_pb2.ListJobsRequest())
    assert list(listed.jobs) == [job]
    await stub.DeleteJob(router_pb2.GetJobRequest(id=job.id))
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stub.GetJob(router_pb2.GetJobRequest(id=job.id))
    assert caught.value.code() == grpc.StatusCode.NOT_FOUND
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await stub.CreateJob(router_pb2.CreateJobRequest(model="none", require_fleet=True))
    assert refused.value.code() == grpc.StatusCode.FAILED_PRECONDITION


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("price_per_engine_hour", math.nan),
        ("price_per_engine_hour", math.inf),
        ("price_per_engine_hour", -1.0),
        ("price_per_engine_hour", 1e300),
        ("model", "a\nb"),
        ("model", "\x1b[31mred"),
        ("model", "x" * 513),
        ("name", "x" * 513),
        ("name", "a\x00b"),
    ],
)
async def test_a_job_that_could_not_be_read_again_is_not_made(
    stage: Stage, channel: grpc.aio.Channel, field: str, value: Any
) -> None:
    stub = router_pb2_grpc.JobsStub(channel)
    asked: dict[str, Any] = {"model": MODEL, field: value}
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stub.CreateJob(router_pb2.CreateJobRequest(**asked))
    assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert from_rpc_error(caught.value).field == field
    if isinstance(value, str) or math.isfinite(value):
        answer = await stage.http().post("/imp/v1/jobs", json=asked)
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == field
    assert not (await stage.client.list(keys.JOBS)).entries


@pytest.mark.parametrize("data", [None, b'{"line":1,"kind":"output"'])
async def test_results_that_cannot_be_read_end_in_a_sentence_without_an_object(
    stage: Stage, channel: grpc.aio.Channel, data: bytes | None
) -> None:
    file = await stage.openai().files.create(file=b"{}\n", purpose="batch")
    stub = router_pb2_grpc.BatchesStub(channel)
    batch = await stub.CreateBatch(
        router_pb2.CreateBatchRequest(
            input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h"
        )
    )
    entry = await stage.client.get(keys.batch("local", batch.id))
    assert entry is not None
    record = msgspec.json.decode(entry.value, type=BatchRecord)
    name = keys.segment_object(record.run_id, 7, 1)
    if data is not None:
        await stage.objects.put(name, data)
    await put_run(stage, record, [SegmentRef(object=name, lines=1, bytes=25)])
    with pytest.raises(grpc.aio.AioRpcError) as ended:
        [line async for line in stub.Results(router_pb2.ResultsRequest(batch_id=batch.id))]
    assert ended.value.code() == grpc.StatusCode.DATA_LOSS
    said = ended.value.details() or ""
    assert "recorded results" in said and record.run_id not in said


async def test_files_go_in_and_out_in_chunks(channel: grpc.aio.Channel) -> None:
    stub = router_pb2_grpc.FilesStub(channel)
    content = bytes(range(1, 128)) * 30_000

    async def parts() -> AsyncIterator[router_pb2.UploadRequest]:
        start = router_pb2.UploadStart(filename="in.jsonl", purpose="batch")
        yield router_pb2.UploadRequest(start=start)
        for at in range(0, len(content), 1 << 20):
            yield router_pb2.UploadRequest(chunk=content[at : at + (1 << 20)])

    file = await stub.Upload(parts())
    assert file.bytes == len(content)
    assert await stub.GetFile(router_pb2.GetFileRequest(id=file.id)) == file

    async def read(**window: int) -> bytes:
        request = router_pb2.DownloadRequest(id=file.id, **window)
        return b"".join([each.chunk async for each in stub.Download(request)])

    assert await read() == content
    assert await read(offset=5, length=10) == content[5:15]
    assert await read(offset=len(content) - 3) == content[-3:]
    listed = await stub.ListFiles(router_pb2.ListFilesRequest(purpose="batch"))
    assert [each.id for each in listed.files] == [file.id]
    assert not listed.page.has_more
    await stub.DeleteFile(router_pb2.GetFileRequest(id=file.id))
    assert not (await stub.ListFiles(router_pb2.ListFilesRequest())).files


async def put_run(stage: Stage, record: BatchRecord, segments: list[SegmentRef]) -> None:
    run = RunRecord(
        id=record.run_id,
        batch_id=record.id,
        account="local",
        job_id="job-0000aaaa",
        fleet="f",
        model=MODEL,
        endpoint=record.endpoint,
        input_object="x",
        index_object="y",
        total=5,
        completed=3,
        failed=0,
        segments=segments,
        ledger=LedgerRecord(tasks=3, busy_engine_s=36.0, price_per_engine_hour=100.0),
        created_at=1,
        started_at=1.0,
    )
    await stage.client.put(keys.run(run.id), msgspec.json.encode(run))


async def test_a_batchs_results_are_followed_to_its_end(
    stage: Stage, channel: grpc.aio.Channel
) -> None:
    files = stage.openai().files
    file = await files.create(file=b"{}\n", purpose="batch")
    stub = router_pb2_grpc.BatchesStub(channel)
    batch = await stub.CreateBatch(
        router_pb2.CreateBatchRequest(
            input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h"
        )
    )
    assert batch.status == "validating"
    entry = await stage.client.get(keys.batch("local", batch.id))
    assert entry is not None
    record = msgspec.json.decode(entry.value, type=BatchRecord)
    record.status = "in_progress"
    await stage.client.put(entry.key, msgspec.json.encode(record))
    first = encode_segment([(1, "output", b'{"n":1}'), (2, "error", b'{"n":2}')])
    second = encode_segment([(3, "output", b'{"n":3}')])
    refs = []
    for number, (lines, data) in enumerate([(2, first), (1, second)]):
        name = keys.segment_object(record.run_id, 7, number)
        await stage.objects.put(name, data)
        refs.append(SegmentRef(object=name, lines=lines, bytes=len(data)))
    await put_run(stage, record, refs[:1])

    def results(**asked: Any) -> Any:
        return stub.Results(router_pb2.ResultsRequest(batch_id=batch.id, **asked))

    now = [(line.line_json, line.is_error) async for line in results()]
    assert now == [('{"n":1}', False), ('{"n":2}', True)]

    following = aiter(results(follow=True, after=1))
    assert (await anext(following)).line_json == '{"n":2}'
    await put_run(stage, record, refs)
    assert (await anext(following)).line_json == '{"n":3}'
    record.status, record.completed_at = "completed", 5
    await stage.client.put(entry.key, msgspec.json.encode(record))
    assert [line async for line in following] == []

    shown = await stub.GetBatch(router_pb2.GetBatchRequest(id=batch.id))
    assert (shown.status, shown.total, shown.completed) == ("completed", 5, 3)
    assert shown.ledger.processing_cost == pytest.approx(1.0)
    assert shown.ledger.tasks_per_dollar == pytest.approx(3.0)
    listed = await stub.ListBatches(
        router_pb2.ListBatchesRequest(page=common_pb2.PageRequest(limit=1))
    )
    assert [each.id for each in listed.batches] == [batch.id]
    with pytest.raises(grpc.aio.AioRpcError) as ended:
        await stub.CancelBatch(router_pb2.GetBatchRequest(id=batch.id))
    assert ended.value.code() == grpc.StatusCode.FAILED_PRECONDITION

    runs = router_pb2_grpc.RunsStub(channel)
    run = await runs.GetRun(router_pb2.GetRunRequest(id=record.run_id))
    assert run.progress.status == "completed"
    assert (await runs.ListRuns(router_pb2.ListRunsRequest())).runs[0] == run
