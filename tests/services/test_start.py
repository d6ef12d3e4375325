"""From the start of a process to its end: what its health says, what it refuses, in which order."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import httpx
import pytest
import pytest_asyncio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from impala.modelserver.v1 import modelserver_pb2, modelserver_pb2_grpc
from libs.rpc import connect
from libs.testing.etcd import EtcdProcess, free_ports
from libs.testing.waiting import eventually
from tests.services.cluster import ALL, HOST, MODEL, WITHIN_S, Cluster, Member
from tests.services.load import chat, finished, results, submit

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.xdist_group("services-start")]

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
SHOWN = {
    "kvstore": {"impala.kvstore.v1.KvStore"},
    "leap": {"impala.leap.v1.Leap"},
    "scheduler": {"impala.scheduler.v1.Scheduler"},
    "modelserver": {
        f"impala.modelserver.v1.{name}" for name in ("ModelServer", "KvControl", "WeightControl")
    },
    "router": {
        f"impala.router.v1.{name}"
        for name in ("Inference", "Jobs", "Files", "Batches", "Runs", "BatchWorker")
    },
}


@pytest_asyncio.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    with EtcdProcess() as etcd:
        async with Cluster(tmp_path / "cluster", etcd.endpoint) as cluster:
            yield cluster


class Watcher:
    """All that health said of a member, from before its start to its end."""

    def __init__(self, member: Member) -> None:
        self._member = member
        self.said: list[int] = []
        self.ended = asyncio.Event()

    async def run(self) -> None:
        """Watch ends by itself when the server has said farewell; a cut stream would raise."""
        async with connect(self._member.address) as channel:
            stub = health_pb2_grpc.HealthStub(channel)
            request = health_pb2.HealthCheckRequest()
            async for answer in stub.Watch(request, wait_for_ready=True, timeout=WITHIN_S):
                self.said.append(answer.status)
        self.ended.set()


@pytest.mark.parametrize("name", ALL)
async def test_health_tells_the_truth_from_start_to_end(cluster: Cluster, name: str) -> None:
    watcher = Watcher(cluster[name])
    async with asyncio.TaskGroup() as group:
        group.create_task(watcher.run())
        cluster.start(name)
        await cluster.ready(name)
        await eventually(lambda: watcher.said[-1:] == [SERVING], within_s=WITHIN_S)
        async with cluster.channel(name) as channel:
            assert SHOWN[name] <= await _listed(channel)
            for shown in SHOWN[name]:
                answer = await health_pb2_grpc.HealthStub(channel).Check(
                    health_pb2.HealthCheckRequest(service=shown), timeout=WITHIN_S
                )
                assert answer.status == SERVING
        assert await cluster.stop(name) == 0
        await watcher.ended.wait()
    # One that is ready within the time of a connection may never have been seen otherwise.
    assert watcher.said in ([NOT_SERVING, SERVING, NOT_SERVING], [SERVING, NOT_SERVING])
    assert cluster.complaints() == {}


async def _listed(channel: grpc.aio.Channel) -> set[str]:
    stub = reflection_pb2_grpc.ServerReflectionStub(channel)
    requests = [reflection_pb2.ServerReflectionRequest(list_services="")]
    async for answer in stub.ServerReflectionInfo(iter(requests), timeout=WITHIN_S):
        return {service.name for service in answer.list_services_response.service}
    raise AssertionError("reflection answered nothing")


async def test_a_model_server_that_loads_says_so_and_does_not_hang(
    cluster: Cluster, tmp_path: Path
) -> None:
    """Its weights are a pipe that nobody writes to: it loads for ever."""
    cluster.flags = {"modelserver": ["--load-from", str(tmp_path / "pipe")]}
    os.mkfifo(tmp_path / "pipe")
    member = cluster.start("modelserver")
    async with connect(member.address) as channel:
        stub = modelserver_pb2_grpc.ModelServerStub(channel)
        state = await stub.GetState(
            modelserver_pb2.GetStateRequest(), wait_for_ready=True, timeout=WITHIN_S
        )
        assert state.phase == "loading"
        health = health_pb2_grpc.HealthStub(channel)
        answer = await health.Check(health_pb2.HealthCheckRequest(), timeout=WITHIN_S)
        assert answer.status == NOT_SERVING
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await stub.Generate(
                modelserver_pb2.GenerateRequest(step_id="s", model=MODEL, prompt=[1]),
                timeout=WITHIN_S,
            ).read()
        assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
        assert "loaded" in str(refused.value.details())
        (tmp_path / "pipe").open("w").close()
    await cluster.ready("modelserver")


async def test_a_router_says_that_it_drains_while_it_answers_what_runs(cluster: Cluster) -> None:
    cluster.flags = {"modelserver": ["--step-s", "0.1"]}
    await cluster.up(*ALL)
    router = cluster["router"]
    async with httpx.AsyncClient(trust_env=False, base_url=router.url, timeout=WITHIN_S) as client:
        assert (await client.get("/health")).json()["status"] == "ok"
        assert (await client.get("/ready")).is_success
        watcher = Watcher(router)
        async with asyncio.TaskGroup() as group:
            group.create_task(watcher.run())
            asked = group.create_task(client.post("/v1/chat/completions", json=chat("Hi", 30)))
            await eventually(lambda: _one_runs(cluster), within_s=WITHIN_S)
            cluster.signal("router", signal.SIGTERM)
            await eventually(lambda: watcher.said[-1:] == [NOT_SERVING], within_s=WITHIN_S)
            assert not asked.done()
        assert asked.result().status_code == 200
    assert await cluster.ended("router") == 0


async def _one_runs(cluster: Cluster) -> bool:
    async with cluster.channel("modelserver") as channel:
        stub = modelserver_pb2_grpc.ModelServerStub(channel)
        state = await stub.GetState(modelserver_pb2.GetStateRequest(), timeout=WITHIN_S)
    return bool(state.running_steps)


@pytest.mark.parametrize("name", ALL)
async def test_the_second_server_on_a_port_refuses(cluster: Cluster, name: str) -> None:
    cluster.start(name)
    await cluster.ready(name)
    told = await _end_of_another(cluster, name, port=cluster[name].port)
    assert f"Port {cluster[name].port} on {HOST} is in use" in told
    if name == "router":
        told = await _end_of_another(
            cluster, name, port=free_ports(1)[0], http_port=cluster[name].http_port
        )
        assert f"The HTTP port {cluster[name].http_port} on {HOST} is in use" in told
    await cluster.ready(name)  # the first is not disturbed


async def _end_of_another(cluster: Cluster, name: str, *, port: int, http_port: int = 0) -> str:
    """The last line of what it says; it must end with 1 and without a traceback."""
    other = Member(f"{name}-b", port, http_port, cluster.folder / "other.log")
    with other.log.open("wb") as log:
        process = cluster.spawn(other, (), log, {})
    assert await asyncio.to_thread(process.wait, WITHIN_S) == 1
    assert "Traceback" not in other.said()
    return other.said().strip().splitlines()[-1]


ORDERS = (
    ("etcd", "kvstore", "leap", "scheduler", "modelserver", "router"),
    ("router", "modelserver", "scheduler", "leap", "kvstore", "etcd"),
    ("modelserver", "etcd", "router", "kvstore", "scheduler", "leap"),
    ("scheduler", "router", "etcd", "leap", "modelserver", "kvstore"),
)


@pytest.mark.parametrize("order", ORDERS, ids=lambda order: f"{order[0]}-first")
async def test_any_order_of_start_ends_in_a_cluster_that_works(
    tmp_path: Path, order: tuple[str, ...]
) -> None:
    """Each is started when the one before has been running for a while, or is ready."""
    etcd = EtcdProcess()
    try:
        async with Cluster(tmp_path / "cluster", etcd.endpoint) as cluster:
            started: list[str] = []
            for name in order:
                if name == "etcd":
                    await asyncio.to_thread(etcd.start)
                else:
                    cluster.start(name)
                    started.append(name)
                    if "etcd" not in order[: order.index(name)]:
                        await eventually(
                            lambda: _has_begun(cluster, started[-1]), within_s=WITHIN_S
                        )
            for name in started:
                await cluster.ready(name)
            await cluster.make_job("router")
            async with httpx.AsyncClient(
                trust_env=False, base_url=cluster["router"].url, timeout=WITHIN_S
            ) as client:
                found = await finished(client, await submit(client, 5, 4))
                assert await results(client, found) == [f"l{at}" for at in range(5)]
            assert cluster.complaints() == {}
    finally:
        etcd.close()


def _has_begun(cluster: Cluster, name: str) -> bool:
    """It has said something, or has ended."""
    process = cluster[name].process
    assert process is not None
    return bool(cluster[name].said()) or process.poll() is not None
