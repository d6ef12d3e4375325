"""An Idempotency-Key makes one thing, however often it is asked for; all else is refused."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import httpx
import pytest
import pytest_asyncio

from impala.router.v1 import router_pb2, router_pb2_grpc
from libs.errors import AlreadyExists, InvalidArgument
from libs.records import keys
from libs.rpc import connect, from_rpc_error
from services.router.tests.conftest import MODEL, Stage

LINE = b'{"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": {}}\n'
KEY = {"idempotency-key": "k 1/?"}


@pytest_asyncio.fixture(loop_scope="session")
async def file_id(stage: Stage) -> AsyncIterator[str]:
    yield (await stage.openai().files.create(file=("in.jsonl", LINE), purpose="batch")).id


def asked_of(path: str, file_id: str) -> dict[str, Any]:
    if path == "/imp/v1/jobs":
        return {"model": MODEL, "name": "one"}
    return {
        "input_file_id": file_id,
        "endpoint": "/v1/chat/completions",
        "completion_window": "24h",
        "metadata": {"a": "1", "b": "2"},
    }


PATHS = ["/imp/v1/jobs", "/v1/batches"]
CHANGES: dict[str, list[dict[str, Any]]] = {
    "/imp/v1/jobs": [
        {"name": "two"},
        {"metadata": {"a": "1"}},
        {"price_per_engine_hour": 2.0},
    ],
    "/v1/batches": [
        {"metadata": {"a": "1", "b": "3"}},
        {"completion_window": "25h"},
        {"output_expires_after": {"anchor": "created_at", "seconds": 3600}},
        {"job_id": "job-00000000"},
        {"input_file_id": "file-nope"},
    ],
}


def refused(answer: httpx.Response) -> None:
    error = answer.json()["error"]
    assert answer.status_code == 409, answer.text
    assert (error["code"], error["param"]) == ("idempotency_key_reused", "Idempotency-Key")
    assert "Idempotency-Key" in error["message"]
    assert answer.headers["x-should-retry"] == "false"


@pytest.mark.parametrize("path", PATHS)
async def test_the_same_request_gives_the_first_result_and_another_one_is_refused(
    stage: Stage, file_id: str, path: str
) -> None:
    http = stage.http()
    asked = asked_of(path, file_id)
    first = (await http.post(path, json=asked, headers=KEY)).json()
    backwards = dict(reversed(asked.items()))
    assert (await http.post(path, json=backwards, headers=KEY)).json() == first
    for change in CHANGES[path]:
        refused(await http.post(path, json=asked | change, headers=KEY))
    other = (await http.post(path, json=asked, headers={"idempotency-key": "k2"})).json()
    assert other["id"] != first["id"]
    assert (await http.get(f"{path}/{first['id']}")).json() == first


@pytest.mark.parametrize("path", PATHS)
async def test_of_requests_that_race_one_creates(stage: Stage, file_id: str, path: str) -> None:
    http = stage.http()
    asked = asked_of(path, file_id)
    answers = await asyncio.gather(
        *(
            http.post(path, json=asked | change, headers=KEY)
            for change in [{}, CHANGES[path][0]] * 5
        )
    )
    made = {answer.json()["id"] for answer in answers if answer.status_code == 200}
    assert len(made) == 1
    others = [answer for answer in answers if answer.status_code != 200]
    assert len(others) == 5
    for answer in others:
        refused(answer)
    kind = keys.JOBS if path == "/imp/v1/jobs" else keys.BATCHES
    assert len((await stage.client.list(kind, limit=10)).entries) == 1


async def test_another_router_agrees(fresh: Stage) -> None:
    await fresh.add_router(member="router-2")
    one, two = (
        httpx.AsyncClient(base_url=router.http_url, verify=False) for router in fresh.routers
    )
    async with one, two:
        asked = asked_of("/imp/v1/jobs", "")
        first = (await one.post("/imp/v1/jobs", json=asked, headers=KEY)).json()
        assert (await two.post("/imp/v1/jobs", json=asked, headers=KEY)).json() == first
        refused(await two.post("/imp/v1/jobs", json=asked | {"name": "2"}, headers=KEY))


async def test_what_was_made_is_told_also_when_it_could_not_be_made_now(
    stage: Stage, file_id: str
) -> None:
    http = stage.http()
    asked = asked_of("/v1/batches", file_id)
    first = (await http.post("/v1/batches", json=asked, headers=KEY)).json()
    await stage.client.delete(keys.file("local", file_id))
    assert (await http.post("/v1/batches", json=asked, headers=KEY)).json() == first


async def test_a_deleted_jobs_key_makes_one_new_job(stage: Stage) -> None:
    http = stage.http()
    asked = asked_of("/imp/v1/jobs", "")
    first = (await http.post("/imp/v1/jobs", json=asked, headers=KEY)).json()
    await http.delete(f"/imp/v1/jobs/{first['id']}")
    answers = await asyncio.gather(
        *(http.post("/imp/v1/jobs", json=asked, headers=KEY) for _ in range(5))
    )
    made = {answer.json()["id"] for answer in answers}
    assert len(made) == 1
    assert made != {first["id"]}


@pytest.mark.parametrize("path", PATHS)
async def test_a_key_that_is_too_long_is_refused(stage: Stage, file_id: str, path: str) -> None:
    headers = {"idempotency-key": "k" * 1001}
    answer = await stage.http().post(path, json=asked_of(path, file_id), headers=headers)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "Idempotency-Key"


async def test_the_same_over_grpc_and_with_http(stage: Stage, file_id: str) -> None:
    asked = asked_of("/v1/batches", file_id)
    headers = {"idempotency-key": "both"}
    made = (await stage.http().post("/v1/batches", json=asked, headers=headers)).json()
    async with connect(stage.router.address) as channel:
        batches = router_pb2_grpc.BatchesStub(channel)
        request = router_pb2.CreateBatchRequest(**asked, idempotency_key="both")
        assert (await batches.CreateBatch(request)).id == made["id"]
        request.completion_window = "2h"
        failed = await caught(batches.CreateBatch(request))
        assert isinstance(failed, AlreadyExists)
        assert (failed.reason, failed.field) == ("IDEMPOTENCY_KEY_REUSED", "idempotency_key")
        jobs = router_pb2_grpc.JobsStub(channel)
        too_long = router_pb2.CreateJobRequest(model=MODEL, idempotency_key="k" * 1001)
        failed = await caught(jobs.CreateJob(too_long))
        assert isinstance(failed, InvalidArgument)
        assert failed.field == "idempotency_key"


async def caught(call: Any) -> Any:
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await call
    return from_rpc_error(error.value)
