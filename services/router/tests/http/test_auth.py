"""Keys: who may call, and that tenants see their own only."""

from __future__ import annotations

import asyncio

import grpc
import openai
import pytest
import pytest_asyncio

from impala.router.v1 import router_pb2, router_pb2_grpc
from libs.cluster.accounts import create_key, hash_key, revoke_key
from libs.rpc import connect
from services.router.tests.conftest import MODEL, Stage


@pytest_asyncio.fixture(loop_scope="session")
async def keyed(bare: Stage) -> Stage:
    await bare.add_server()
    await bare.add_scheduler()
    await bare.add_router(no_auth=False)
    return bare


async def key_of(stage: Stage, account: str) -> str:
    token = account.encode().ljust(16, b"-")
    plaintext = await create_key(stage.client, account, "test", token_bytes=token, now=1)
    await key_is(stage, plaintext, 200)
    return plaintext


async def key_is(stage: Stage, key: str, status: int) -> None:
    """Waits until the router's view of the keys answers so."""
    http = stage.http()
    async with asyncio.timeout(5):
        while True:
            answer = await http.get("/v1/models", headers={"x-api-key": key})
            if answer.status_code == status:
                return


async def test_without_a_valid_key_nothing_is_told(keyed: Stage) -> None:
    http = keyed.http()
    for path in ("/v1/models", "/v1/files", "/v1/batches", "/imp/v1/jobs"):
        for headers in ({}, {"authorization": "Bearer nope"}, {"authorization": "Basic x"}):
            answer = await http.get(path, headers=headers)
            assert answer.status_code == 401
            assert answer.json()["error"]["type"] == "authentication_error"


async def test_health_ready_and_metrics_need_no_key(keyed: Stage) -> None:
    for path in ("/health", "/ready", "/metrics"):
        assert (await keyed.http().get(path)).status_code == 200


async def test_a_key_works_as_bearer_and_as_x_api_key_until_it_is_revoked(keyed: Stage) -> None:
    key = await key_of(keyed, "ann")
    http = keyed.http()
    bearer, plain = {"authorization": f"Bearer {key}"}, {"x-api-key": key}
    assert (await http.get("/v1/models", headers=bearer)).status_code == 200
    assert (await http.get("/v1/models", headers=plain)).status_code == 200
    await revoke_key(keyed.client, hash_key(key), now=2)
    await key_is(keyed, key, 401)
    assert (await http.get("/v1/models", headers=bearer)).status_code == 401


async def test_tenants_see_their_own_files_and_batches_only(keyed: Stage) -> None:
    ann = keyed.openai(api_key=await key_of(keyed, "ann"))
    bob = keyed.openai(api_key=await key_of(keyed, "bob"))
    file = await ann.files.create(file=b"x\n", purpose="batch")
    batch = await ann.batches.create(
        input_file_id=file.id, endpoint="/v1/completions", completion_window="24h"
    )
    assert [each async for each in bob.files.list()] == []
    assert [each async for each in bob.batches.list()] == []
    for attempt in (
        bob.files.retrieve(file.id),
        bob.files.delete(file.id),
        bob.batches.retrieve(batch.id),
        bob.batches.cancel(batch.id),
        bob.batches.create(
            input_file_id=file.id, endpoint="/v1/completions", completion_window="24h"
        ),
    ):
        with pytest.raises(openai.NotFoundError):
            await attempt


async def test_tenants_have_different_salts(keyed: Stage) -> None:
    for account in ("ann", "bob"):
        client = keyed.openai(api_key=await key_of(keyed, account))
        await client.completions.create(model=MODEL, prompt="x" * 64)
    first, second = keyed.server.requests
    assert first.account_salt != second.account_salt
    hashes = [each.content_hashes for each in keyed.scheduler.acquired]
    assert hashes[0] != hashes[1]


async def test_the_grpc_api_asks_for_the_key_too(keyed: Stage) -> None:
    key = await key_of(keyed, "ann")
    async with connect(keyed.router.address) as channel:
        stub = router_pb2_grpc.InferenceStub(channel)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.ListModels(router_pb2.ListModelsRequest())
        assert caught.value.code() == grpc.StatusCode.UNAUTHENTICATED
        answer = await stub.ListModels(
            router_pb2.ListModelsRequest(), metadata=(("authorization", f"Bearer {key}"),)
        )
    assert [model.id for model in answer.models] == [MODEL]
