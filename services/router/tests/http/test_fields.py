"""What creates and lists names every field at fault as the client wrote it, over HTTP and gRPC."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable
from typing import Any

import grpc
import pytest

from impala.common.v1 import common_pb2
from impala.router.v1 import router_pb2, router_pb2_grpc
from libs.rpc import connect, from_rpc_error
from services.router.tests.conftest import MODEL, Stage

EXPIRES = "output_expires_after"
TYPE, VALUE, MISSING = "invalid_type", "invalid_value", "missing_required_parameter"

BATCHES: list[tuple[dict[str, Any], str, str]] = [
    ({"input_file_id": None}, "input_file_id", MISSING),
    ({"input_file_id": 5}, "input_file_id", TYPE),
    ({"endpoint": ["x"]}, "endpoint", TYPE),
    ({"completion_window": 24}, "completion_window", TYPE),
    ({"job_id": 5}, "job_id", TYPE),
    ({"metadata": "x"}, "metadata", TYPE),
    ({"metadata": []}, "metadata", TYPE),
    ({"tags": 5}, "tags", TYPE),
    ({"tags": [{}]}, "tags[0]", TYPE),
    ({"metdata": {}}, "metdata", "unknown_parameter"),
    ({EXPIRES: 5}, EXPIRES, TYPE),
    ({EXPIRES: {}}, f"{EXPIRES}.anchor", MISSING),
    ({EXPIRES: {"seconds": 3600}}, f"{EXPIRES}.anchor", MISSING),
    ({EXPIRES: {"anchor": "created_at"}}, f"{EXPIRES}.seconds", MISSING),
    ({EXPIRES: {"anchor": 5, "seconds": 3600}}, f"{EXPIRES}.anchor", TYPE),
    ({EXPIRES: {"anchor": "now", "seconds": 3600}}, f"{EXPIRES}.anchor", VALUE),
    ({EXPIRES: {"anchor": "created_at", "seconds": "3600"}}, f"{EXPIRES}.seconds", TYPE),
    ({EXPIRES: {"anchor": "created_at", "seconds": True}}, f"{EXPIRES}.seconds", TYPE),
    ({EXPIRES: {"anchor": "created_at", "seconds": 3599}}, f"{EXPIRES}.seconds", VALUE),
    ({EXPIRES: {"anchor": "created_at", "seconds": 2_592_001}}, f"{EXPIRES}.seconds", VALUE),
    (
        {EXPIRES: {"anchor": "created_at", "seconds": 3600, "days": 1}},
        f"{EXPIRES}.days",
        "unknown_parameter",
    ),
]
JOBS: list[tuple[dict[str, Any], str, str]] = [
    ({"model": None}, "model", MISSING),
    ({"model": 5}, "model", TYPE),
    ({"name": []}, "name", TYPE),
    ({"metadata": 5}, "metadata", TYPE),
    ({"price_per_engine_hour": "1"}, "price_per_engine_hour", TYPE),
    ({"price_per_engine_hour": -1}, "price_per_engine_hour", VALUE),
    ({"price": 1}, "price", "unknown_parameter"),
]
FORMS: list[tuple[dict[str, str], str, str]] = [
    ({"purpose": "x"}, "purpose", "invalid_purpose"),
    ({"expires_after[seconds]": "3600"}, "expires_after.anchor", MISSING),
    ({"expires_after[anchor]": "created_at"}, "expires_after.seconds", MISSING),
    (
        {"expires_after[anchor]": "created_at", "expires_after[seconds]": "x"},
        "expires_after.seconds",
        TYPE,
    ),
    ({"expires_after": "3600"}, "expires_after", "unknown_parameter"),
]


async def test_a_batchs_and_a_jobs_fields(stage: Stage) -> None:
    http = stage.http()
    batch = {
        "input_file_id": "file-x",
        "endpoint": "/v1/chat/completions",
        "completion_window": "24h",
    }
    for path, asked, table in (
        ("/v1/batches", batch, BATCHES),
        ("/imp/v1/jobs", {"model": MODEL}, JOBS),
    ):
        for changes, param, code in table:
            answer = await http.post(path, json=asked | changes)
            error = answer.json()["error"]
            assert answer.status_code == 400, changes
            assert (error["param"], error["code"]) == (param, code), changes
            assert param in error["message"]


async def test_an_uploads_fields(stage: Stage) -> None:
    http = stage.http()
    for changes, param, code in FORMS:
        files = {"file": ("x.jsonl", b"{}")}
        answer = await http.post("/v1/files", data={"purpose": "batch"} | changes, files=files)
        error = answer.json()["error"]
        assert answer.status_code == 400, changes
        assert (error["param"], error["code"]) == (param, code), changes
    assert await stage.objects.list("files") == []


LISTS = ["/v1/files", "/v1/batches", "/imp/v1/runs", "/imp/v1/jobs"]


async def test_a_cursor_that_is_no_id_of_the_list_is_refused(stage: Stage) -> None:
    http = stage.http()
    other = {"/v1/files": "batch_", "/v1/batches": "file-"}
    for path in LISTS:
        for after in ("nope", "../x", other.get(path, "file-") + "0" * 28, "x" * 5000):
            answer = await http.get(path, params={"after": after})
            error = answer.json()["error"]
            assert answer.status_code == 400, path
            assert (error["param"], error["code"]) == ("after", VALUE), path
        assert (await http.get(path, params={"after": ""})).json()["data"] == []


async def test_jobs_are_paged_after_a_job_that_is_there(stage: Stage) -> None:
    http = stage.http()
    for number in range(5):
        await stage.add_job(job_id=f"job-0000000{number}")
    await stage.router_sees_jobs(5)
    found: list[str] = []
    for _ in range(5):
        after = {"after": found[-1]} if found else {}
        page = (await http.get("/imp/v1/jobs", params={"limit": "1"} | after)).json()
        found += [job["id"] for job in page["data"]]
    assert found == [f"job-0000000{number}" for number in (4, 3, 2, 1, 0)]
    assert not page["has_more"]
    await http.delete(f"/imp/v1/jobs/{found[0]}")
    gone = await http.get("/imp/v1/jobs", params={"after": found[0]})
    assert (gone.status_code, gone.json()["error"]["param"]) == (400, "after")


async def field_of(call: Awaitable[object]) -> tuple[str, str | None]:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    error = from_rpc_error(caught.value)
    return error.reason, error.field


async def test_the_same_over_grpc_in_its_own_names(stage: Stage) -> None:
    async def upload(expires_after_s: float) -> AsyncIterator[router_pb2.UploadRequest]:
        start = router_pb2.UploadStart(purpose="batch", expires_after_s=expires_after_s)
        yield router_pb2.UploadRequest(start=start)

    async with connect(stage.router.address) as channel:
        batches = router_pb2_grpc.BatchesStub(channel)
        files = router_pb2_grpc.FilesStub(channel)
        for seconds, code in (
            (5.0, "INVALID_VALUE"),
            (3600.5, "INVALID_TYPE"),
            (float("nan"), "NOT_FINITE"),
            (float("inf"), "NOT_FINITE"),
        ):
            wrong = router_pb2.CreateBatchRequest(
                input_file_id="file-x",
                endpoint="/v1/completions",
                completion_window="24h",
                output_expires_after_s=seconds,
            )
            refused = await field_of(batches.CreateBatch(wrong))
            assert refused == (code, "output_expires_after_s")
            refused = await field_of(files.Upload(upload(seconds)))
            assert refused == (code, "start.expires_after_s")
        page = common_pb2.PageRequest(after="nope")
        for listing in (
            batches.ListBatches(router_pb2.ListBatchesRequest(page=page)),
            files.ListFiles(router_pb2.ListFilesRequest(page=page)),
            router_pb2_grpc.JobsStub(channel).ListJobs(router_pb2.ListJobsRequest(page=page)),
            router_pb2_grpc.RunsStub(channel).ListRuns(router_pb2.ListRunsRequest(page=page)),
        ):
            assert await field_of(listing) == ("INVALID_VALUE", "page.after")
