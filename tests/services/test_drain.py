"""SIGTERM under load: no client of the cluster sees an error, and the process ends with 0."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio

from impala.modelserver.v1 import modelserver_pb2, modelserver_pb2_grpc
from libs.cluster.client import EtcdClient
from libs.cluster.election import Election
from libs.records import keys
from libs.testing.etcd import EtcdProcess
from libs.testing.waiting import eventually
from tests.services.cluster import MODEL, WITHIN_S, Cluster
from tests.services.load import ENDPOINT, Load, chat, finished, loaded, results, submit

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.xdist_group("services-drain"),
    pytest.mark.asyncio(loop_scope="module"),
]

MEMBERS = (
    *("kvstore", "leap", "scheduler-1", "scheduler-2"),
    *("modelserver-1", "modelserver-2", "router-1", "router-2"),
)
TOKENS, LONG = 24, 250
STEP_S = 0.02
FLEET = f"{MODEL}.float32"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Cluster]:
    folder: Path = tmp_path_factory.mktemp("drain")
    flags = {"modelserver": ["--step-s", str(STEP_S), "--max-seqs", "16"]}
    with EtcdProcess() as etcd:
        async with Cluster(folder / "cluster", etcd.endpoint, flags) as cluster:
            await cluster.up(*MEMBERS)
            yield cluster
            assert cluster.complaints() == {}


async def under_load(cluster: Cluster, name: str, routers: tuple[str, ...]) -> Load:
    """Ends the member while clients of these routers and a batch are at work; it is back after."""
    load = Load(TOKENS)
    async with httpx.AsyncClient(
        trust_env=False, timeout=30, base_url=cluster[routers[0]].url
    ) as client:
        async with loaded([cluster[each] for each in routers], load):
            await eventually(lambda: load.least >= 2, within_s=WITHIN_S)
            batch = await submit(client, 60, TOKENS)
            await eventually(lambda: _half_done(client, batch), within_s=WITHIN_S)
            assert await cluster.stop(name) == 0
            before = dict(load.answered)
            await eventually(
                lambda: all(load.answered[kind] > count + 1 for kind, count in before.items()),
                within_s=WITHIN_S,
            )
            found = await finished(client, batch)
        assert await results(client, found) == sorted(f"l{at}" for at in range(60))
    cluster.start(name)
    await cluster.ready(name)
    return load


async def _half_done(client: httpx.AsyncClient, batch: str) -> bool:
    found = (await client.get(f"/v1/batches/{batch}")).json()
    return int(found["request_counts"]["completed"]) >= 5


@pytest.mark.parametrize("name", ["kvstore", "leap", "modelserver-1", "scheduler-1", "router-2"])
async def test_no_client_sees_an_error(cluster: Cluster, name: str) -> None:
    """Of the routers the clients use the one that stays."""
    load = await under_load(cluster, name, ("router-1",))
    assert load.failures == []


async def test_a_router_answers_what_it_has_accepted(cluster: Cluster) -> None:
    """Its own clients: each has one request under way when it ends, and gets its answer."""
    router = cluster["router-2"]
    load = Load(TOKENS)
    async with loaded([router], load):
        await eventually(lambda: load.least >= 2, within_s=WITHIN_S)
        cluster.signal("router-2", signal.SIGTERM)
        load.stop = True
    assert load.failures == []
    assert await cluster.ended("router-2") == 0
    cluster.start("router-2")
    await cluster.ready("router-2")


async def test_a_standby_leads_within_a_second(cluster: Cluster) -> None:
    """The time to live of the election is 10 s; a leader that goes does not wait for it."""
    async with EtcdClient([cluster.etcd]) as client:
        election = Election(client, keys.fleet_election(FLEET), "observer")
        leader = await election.leader()
        assert leader is not None
        async with asyncio.timeout(WITHIN_S):
            cluster.signal(leader.candidate_id, signal.SIGTERM)
            asked = time.monotonic()
            observed = election.observe()
            async for now in observed:
                if now is not None and now.epoch > leader.epoch:
                    break
            took = time.monotonic() - asked
            await observed.aclose()
    print(f"\nanother scheduler leads {took:.3f} s after SIGTERM of the first")
    assert now is not None and now.candidate_id != leader.candidate_id
    assert took < 5  # far from a busy machine's worst, and from the lease's 10 s
    assert await cluster.ended(leader.candidate_id) == 0
    cluster.start(leader.candidate_id)
    await cluster.ready(leader.candidate_id)


async def test_what_outlives_a_servers_grace_is_run_by_another(cluster: Cluster) -> None:
    """A plain request has told its client nothing yet, so it may begin again; so may the lines of
    a batch. A stream that has begun is told that its server is gone."""
    name, other = "modelserver-1", "modelserver-2"
    assert await cluster.stop(other) == 0
    assert await cluster.stop(name) == 0
    cluster.start(name, "--drain-s", "0.5")
    await cluster.ready(name)
    async with httpx.AsyncClient(
        trust_env=False, timeout=WITHIN_S, base_url=cluster["router-1"].url
    ) as client:
        await eventually(lambda: _answers(client), within_s=WITHIN_S)
        batch = await submit(client, 4, LONG)
        asked = asyncio.create_task(client.post(ENDPOINT, json=chat("long", LONG)))
        stream = asyncio.create_task(_stream(client))
        await eventually(lambda: _runs(cluster, name, 6), within_s=WITHIN_S)
        cluster.start(other)
        await cluster.ready(other)
        began = time.monotonic()
        assert await cluster.stop(name) == 0
        assert time.monotonic() - began < LONG * STEP_S, "it waited for all of them"
        answer = await asked
        assert answer.status_code == 200, answer.text
        assert answer.json()["usage"]["completion_tokens"] == LONG
        assert (await stream)["type"] == "server_error"
        assert await results(client, await finished(client, batch)) == [f"l{at}" for at in range(4)]
    cluster.start(name)
    await cluster.ready(name)


async def _answers(client: httpx.AsyncClient) -> bool:
    return (await client.post(ENDPOINT, json=chat("Hi", 1))).is_success


async def _runs(cluster: Cluster, name: str, steps: int) -> bool:
    async with cluster.channel(name) as channel:
        stub = modelserver_pb2_grpc.ModelServerStub(channel)
        state = await stub.GetState(modelserver_pb2.GetStateRequest(), timeout=WITHIN_S)
    return bool(state.running_steps == steps)


async def _stream(client: httpx.AsyncClient) -> dict[str, Any]:
    """The error that ends it; it has begun by then."""
    body = chat("stream", LONG, stream=True)
    async with client.stream("POST", ENDPOINT, json=body) as answer:
        assert answer.status_code == 200
        chunks = [
            json.loads(line.removeprefix("data: "))
            async for line in answer.aiter_lines()
            if line.startswith("data: {")
        ]
    assert len(chunks) > 1
    return dict(chunks[-1]["error"])


@pytest.mark.parametrize("keeps", [False, True], ids=["new-connections", "kept-connections"])
async def test_no_connection_is_closed_on_a_request(cluster: Cluster, keeps: bool) -> None:
    """A client that cannot connect any more asks another router; one whose request was swallowed
    cannot know whether it may. So there is an answer, or there is no connection."""
    router = cluster["router-2"]
    told: Counter[str] = Counter()
    async with asyncio.TaskGroup() as group:
        asking = [group.create_task(_knock(router.url, keeps, told)) for _ in range(8)]
        await eventually(lambda: told["200"] > 50, within_s=WITHIN_S)
        cluster.signal("router-2", signal.SIGTERM)
        assert await cluster.ended("router-2") == 0
        await asyncio.gather(*asking)
    assert set(told) <= {"200", "ConnectError"}, told
    cluster.start("router-2")
    await cluster.ready("router-2")


async def _knock(url: str, keeps: bool, told: Counter[str]) -> None:
    """Asks, each time on a new connection or on a kept one, until there is nobody."""
    async with httpx.AsyncClient(trust_env=False, base_url=url) as client:
        while not told["ConnectError"]:
            headers = {} if keeps else {"connection": "close"}
            try:
                told[str((await client.get("/health", headers=headers)).status_code)] += 1
            except httpx.HTTPError as error:
                told[type(error).__name__] += 1
