"""/v1/batches, with the records that a leader would write put there by hand."""

from __future__ import annotations

import asyncio

import msgspec
import openai
import pytest

from libs.records import keys
from libs.records.batch import (
    BatchError,
    BatchRecord,
    LedgerRecord,
    RunRecord,
)
from libs.units.durations import DurationSketch
from services.router.tests.conftest import MODEL, Stage

LINE = b'{"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": {}}\n'

ASKED: dict[str, object] = {"endpoint": "/v1/chat/completions", "completion_window": "24h"}


async def upload(client: openai.AsyncOpenAI) -> str:
    return (await client.files.create(file=("in.jsonl", LINE), purpose="batch")).id


async def create(client: openai.AsyncOpenAI, **changes: object) -> openai.types.Batch:
    if "input_file_id" not in changes:
        changes["input_file_id"] = await upload(client)
    return await client.batches.create(**(ASKED | changes))


async def record_of(stage: Stage, batch_id: str) -> BatchRecord:
    entry = await stage.client.get(keys.batch("local", batch_id))
    assert entry is not None
    return msgspec.json.decode(entry.value, type=BatchRecord)


async def put(stage: Stage, record: BatchRecord | RunRecord) -> None:
    key = (
        keys.batch(record.account, record.id)
        if isinstance(record, BatchRecord)
        else keys.run(record.id)
    )
    await stage.client.put(key, msgspec.json.encode(record))


def run_of(record: BatchRecord) -> RunRecord:
    sketch = DurationSketch()
    for _ in range(3):
        sketch.add(2.0)
    return RunRecord(
        id=record.run_id,
        batch_id=record.id,
        account=record.account,
        job_id="job-0000aaaa",
        fleet="tiny.float32",
        model=MODEL,
        endpoint=record.endpoint,
        input_object="files/local/x",
        index_object=keys.index_object(record.run_id),
        total=4,
        completed=3,
        failed=1,
        ledger=LedgerRecord(
            tasks=4,
            prompt_tokens=900_000,
            cached_tokens=500_000,
            completion_tokens=100_000,
            computed_tokens=500_300,
            busy_engine_s=1800.0,
            idle_engine_s=1800.0,
            price_per_engine_hour=2.0,
            task_seconds=sketch.to_list(),
        ),
        created_at=record.created_at,
        started_at=float(record.created_at),
    )


async def test_lines_that_a_cancel_left_are_told_from_those_that_failed(stage: Stage) -> None:
    client, http = stage.openai(), stage.http()
    record = await record_of(stage, (await create(client)).id)
    await put(stage, msgspec.structs.replace(record, status="cancelled"))
    await put(stage, msgspec.structs.replace(run_of(record), completed=1, failed=3, unanswered=2))
    for path in (f"/v1/batches/{record.id}", f"/imp/v1/runs/{record.run_id}"):
        shown = (await http.get(path)).json()
        assert shown["request_counts"] == {"total": 4, "completed": 1, "failed": 3}
        assert shown["unanswered"] == 2


async def test_lines_that_run_again_because_a_server_was_lost_are_told(stage: Stage) -> None:
    client, http = stage.openai(), stage.http()
    record = await record_of(stage, (await create(client)).id)
    await put(stage, msgspec.structs.replace(record, status="in_progress"))
    for losses, told in (({}, 0), ({0: 1, 3: 2}, 2)):
        await put(stage, msgspec.structs.replace(run_of(record), losses=losses))
        for path in (f"/v1/batches/{record.id}", f"/imp/v1/runs/{record.run_id}"):
            assert (await http.get(path)).json()["rerun"] == told


async def test_a_new_batch_is_validating_with_zeros_and_nulls(stage: Stage) -> None:
    client = stage.openai()
    batch = await create(client, metadata={"k": "v"})
    assert batch.id.startswith("batch_")
    assert batch.status == "validating"
    assert batch.expires_at == batch.created_at + 86_400
    assert batch.request_counts is not None
    assert batch.request_counts.model_dump() == {"total": 0, "completed": 0, "failed": 0}
    assert batch.usage is not None
    assert batch.usage.total_tokens == 0
    assert batch.metadata == {"k": "v"}
    assert batch.output_file_id is None
    assert batch.model is None
    record = await record_of(stage, batch.id)
    assert record.run_id.startswith("run-")
    assert await stage.client.get(keys.file_ref(record.input_file_id, batch.id)) is not None


async def test_a_running_batch_shows_its_run_and_its_money(stage: Stage) -> None:
    client = stage.openai()
    record = await record_of(stage, (await create(client)).id)
    record.status, record.model, record.job_id = "in_progress", MODEL, "job-0000aaaa"
    record.in_progress_at = record.created_at
    await put(stage, record)
    await put(stage, run_of(record))
    batch = await client.batches.retrieve(record.id)
    assert batch.status == "in_progress"
    assert batch.model == MODEL
    assert batch.request_counts is not None
    assert batch.request_counts.model_dump() == {"total": 4, "completed": 3, "failed": 1}
    assert batch.usage is not None
    assert batch.usage.input_tokens == 900_000
    assert batch.usage.input_tokens_details.cached_tokens == 500_000
    assert batch.usage.total_tokens == 1_000_000
    extra = batch.model_extra or {}
    assert extra["job_id"] == "job-0000aaaa"
    assert extra["processing_cost"] == pytest.approx(2.0)
    assert extra["price_1m_tokens"] == pytest.approx(2.0)
    assert extra["tasks_per_dollar"] == pytest.approx(2.0)
    assert extra["task_completion_s"]["p50"] == pytest.approx(2.0, rel=0.06)

    run = (await stage.http().get(f"/imp/v1/runs/{record.run_id}")).json()
    assert run["ledger"]["wasted_tokens"] == 300
    assert run["status"] == "in_progress"
    assert run["ledger"]["tasks_per_dollar"] == pytest.approx(2.0)
    runs = (await stage.http().get("/imp/v1/runs", params={"job_id": "job-0000aaaa"})).json()
    assert [each["id"] for each in runs["data"]] == [record.run_id]
    assert (await stage.http().get("/imp/v1/runs?job_id=job-other")).json()["data"] == []


async def test_a_failed_batch_lists_its_errors(stage: Stage) -> None:
    client = stage.openai()
    record = await record_of(stage, (await create(client)).id)
    record.status, record.failed_at = "failed", record.created_at
    record.errors = [BatchError(code="duplicate_custom_id", message="Twice.", line=3)]
    await put(stage, record)
    batch = await client.batches.retrieve(record.id)
    assert batch.errors is not None
    assert batch.errors.object == "list"
    assert batch.errors.data is not None
    assert batch.errors.data[0].model_dump() == {
        "code": "duplicate_custom_id",
        "line": 3,
        "message": "Twice.",
        "param": None,
    }


async def test_a_cancel_shows_at_once_and_is_idempotent(stage: Stage) -> None:
    client = stage.openai()
    batch = await create(client)
    first = await client.batches.cancel(batch.id)
    assert first.status == "cancelling"
    assert first.cancelling_at is not None
    again = await client.batches.cancel(batch.id)
    assert again == first
    assert (await client.batches.retrieve(batch.id)).status == "cancelling"
    assert await stage.client.get(keys.cancel(batch.id)) is not None


@pytest.mark.parametrize("status", ["completed", "failed", "expired", "cancelled"])
async def test_a_cancel_after_the_end_is_one_409(stage: Stage, status: str) -> None:
    client = stage.openai(max_retries=2)
    record = await record_of(stage, (await create(client)).id)
    record.status = status
    await put(stage, record)
    with pytest.raises(openai.ConflictError, match=f"status '{status}'") as caught:
        await client.batches.cancel(record.id)
    assert caught.value.response.headers["x-should-retry"] == "false"
    assert await stage.client.get(keys.cancel(record.id)) is None


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"completion_window": "1 day"}, "completion_window"),
        ({"completion_window": "0h"}, "completion_window"),
        ({"endpoint": "/v1/embeddings"}, "endpoint"),
        ({"metadata": {"k": 5}}, "metadata.k"),
        ({"metadata": {str(i): "" for i in range(17)}}, "metadata"),
    ],
)
async def test_a_field_that_is_wrong_is_400_at_once(
    stage: Stage, changes: dict[str, object], param: str
) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        await create(stage.openai(), **changes)
    assert caught.value.param == param


async def test_an_unknown_file_and_a_file_of_another_purpose_are_refused(stage: Stage) -> None:
    client = stage.openai()
    with pytest.raises(openai.NotFoundError) as caught:
        await create(client, input_file_id="file-nope")
    assert caught.value.param == "input_file_id"
    other = await client.files.create(file=LINE, purpose="user_data")
    with pytest.raises(openai.BadRequestError) as refused:
        await create(client, input_file_id=other.id)
    assert refused.value.param == "input_file_id"


async def test_a_job_can_be_named_and_must_exist(stage: Stage) -> None:
    job = await stage.add_job()
    client = stage.openai()
    batch = await create(client, extra_body={"job_id": job.id})
    assert (batch.model_extra or {})["job_id"] == job.id
    with pytest.raises(openai.NotFoundError) as caught:
        await create(client, extra_body={"job_id": "job-ffffffff"})
    assert caught.value.param == "job_id"


async def test_windows_are_honoured(stage: Stage) -> None:
    client = stage.openai()
    short = await create(client, completion_window="2h")
    assert short.expires_at == short.created_at + 7200
    assert short.completion_window == "2h"
    assert (await create(client, completion_window="unlimited")).expires_at is None


async def test_an_idempotency_key_makes_one_batch(stage: Stage) -> None:
    client = stage.openai()
    file_id = await upload(client)
    first = await create(client, input_file_id=file_id, extra_headers={"Idempotency-Key": "k" * 80})
    again = await create(client, input_file_id=file_id, extra_headers={"Idempotency-Key": "k" * 80})
    assert again.id == first.id
    other = await create(client, input_file_id=file_id, extra_headers={"Idempotency-Key": "/ ?"})
    assert other.id != first.id


@pytest.mark.parametrize("count", [25, pytest.param(99, marks=pytest.mark.slow)])
async def test_batches_are_paged_exactly_once_each(stage: Stage, count: int) -> None:
    client, http = stage.openai(), stage.http()
    first = await record_of(stage, (await create(client)).id)
    # The same second for all: ids alone give the order.
    ids = [first.id, *(f"batch_{'0' * 11}1{number:016x}" for number in range(count - 1))]
    async with asyncio.TaskGroup() as group:
        for batch_id in ids[1:]:
            group.create_task(put(stage, msgspec.structs.replace(first, id=batch_id)))
    newest_first = sorted(ids, reverse=True)
    assert [each.id async for each in client.batches.list(limit=100)] == newest_first
    assert [each.id async for each in client.batches.list(limit=10)] == newest_first
    found: list[str] = []
    more = True
    while more:
        after = {"after": found[-1]} if found else {}
        page = (await http.get("/v1/batches", params={"limit": "1"} | after)).json()
        assert len(page["data"]) == 1
        assert page["last_id"] == page["first_id"] == page["data"][0]["id"]
        found.append(page["last_id"])
        more = page["has_more"]
    assert found == newest_first


async def test_a_pages_size_has_a_default_and_bounds(stage: Stage) -> None:
    client = stage.openai()
    file_id = await upload(client)
    for _ in range(21):
        await create(client, input_file_id=file_id)
    default = await client.batches.list()
    assert len(default.data) == 20
    assert default.has_more
    empty = await client.batches.list(limit=0)
    assert (empty.data, empty.has_more) == ([], False)
    with pytest.raises(openai.BadRequestError) as caught:
        await client.batches.list(limit=101)
    assert caught.value.code == "integer_above_max_value"
