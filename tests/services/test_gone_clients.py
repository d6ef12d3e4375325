"""Clients that leave: nothing of what they asked for stays behind, down to the engine's blocks."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import grpc
import httpx
import pytest
import pytest_asyncio

from impala.modelserver.v1 import modelserver_pb2, modelserver_pb2_grpc
from impala.router.v1 import router_pb2, router_pb2_grpc
from impala.scheduler.v1 import scheduler_pb2, scheduler_pb2_grpc
from libs.rpc import connect
from libs.testing.etcd import EtcdProcess
from libs.testing.waiting import eventually
from tests.services.cluster import ALL, HOST, WITHIN_S, Cluster
from tests.services.load import ENDPOINT, chat

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.xdist_group("services-gone"),
    pytest.mark.asyncio(loop_scope="module"),
]

STEP_S = 0.02
LONG = 1000
"""Tokens: twenty seconds."""
FREED_WITHIN_S = 3.0
"""The bound is 0.1 s on a quiet machine, and printed; a neighbour can hold a process up."""
SOCKETS = 200


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Cluster]:
    folder: Path = tmp_path_factory.mktemp("gone")
    flags = {"modelserver": ["--step-s", str(STEP_S)]}
    with EtcdProcess() as etcd:
        async with Cluster(folder / "cluster", etcd.endpoint, flags) as cluster:
            await cluster.up(*ALL)
            yield cluster
            assert cluster.complaints() == {}


class Engine:
    """What the model server says of itself."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._stub = modelserver_pb2_grpc.ModelServerStub(channel)

    async def state(self) -> modelserver_pb2.State:
        state: modelserver_pb2.State = await self._stub.GetState(
            modelserver_pb2.GetStateRequest(), timeout=WITHIN_S
        )
        return state

    async def runs(self, steps: int) -> bool:
        state = await self.state()
        return state.running_steps == steps and state.running_sequences == steps

    async def is_empty(self) -> bool:
        state = await self.state()
        used = state.total_blocks - state.free_blocks - state.cached_blocks
        return used == 0 and state.running_steps == state.waiting_steps == 0


@pytest_asyncio.fixture(loop_scope="module")
async def engine(cluster: Cluster) -> AsyncIterator[Engine]:
    async with cluster.channel("modelserver") as channel:
        yield Engine(channel)


async def freed_after(
    engine: Engine, what: str, leave: Callable[[], Awaitable[object] | object]
) -> None:
    """One step runs; `leave` ends its client. Its blocks are free in time."""
    await eventually(lambda: engine.runs(1), within_s=WITHIN_S)
    began = time.monotonic()
    left = leave()
    if isinstance(left, Awaitable):
        await left
    await eventually(engine.is_empty, within_s=WITHIN_S)
    took = time.monotonic() - began
    print(f"\n{what}: its blocks were free {took * 1000:.0f} ms later")
    assert took < FREED_WITHIN_S


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "streamed"])
async def test_a_closed_connection_frees_its_blocks(
    cluster: Cluster, engine: Engine, stream: bool
) -> None:
    _, writer = await asyncio.open_connection(HOST, cluster["router"].http_port)
    writer.write(http_request(f"stay {stream}", stream=stream))
    await freed_after(engine, f"HTTP closed, stream={stream}", writer.close)


async def test_a_cancelled_call_frees_its_blocks(cluster: Cluster, engine: Engine) -> None:
    async with connect(cluster["router"].address) as channel:
        call = router_pb2_grpc.InferenceStub(channel).StreamComplete(grpc_request("cancelled"))
        await freed_after(engine, "gRPC cancelled", call.cancel)


async def test_a_deadline_frees_its_blocks(cluster: Cluster, engine: Engine) -> None:
    """0.2 s for a generation that takes twenty."""
    async with connect(cluster["router"].address) as channel:
        stub = router_pb2_grpc.InferenceStub(channel)
        await stub.ListModels(router_pb2.ListModelsRequest(), timeout=WITHIN_S)  # connects
        call = stub.Complete(grpc_request("late"), timeout=0.2)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call
        ended = time.monotonic()
    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    await eventually(engine.is_empty, within_s=WITHIN_S)
    print(f"\ngRPC deadline: its blocks were free {(time.monotonic() - ended) * 1000:.0f} ms later")
    assert time.monotonic() - ended < FREED_WITHIN_S


async def test_two_hundred_sockets_leave_nothing_behind(cluster: Cluster, engine: Engine) -> None:
    """Each is closed at a moment of its own: before, in the middle of, or after what it sends."""
    rng = random.Random(7)
    await _one_answer(cluster)
    await eventually(engine.is_empty, within_s=WITHIN_S)
    before = {name: _files(cluster[name].pid) for name in ("router", "modelserver", "scheduler")}
    async with asyncio.TaskGroup() as group:
        for number in range(SOCKETS):
            group.create_task(_come_and_go(cluster, number, rng))
    await eventually(engine.is_empty, within_s=WITHIN_S)
    await eventually(lambda: _none_running(cluster), within_s=WITHIN_S)
    # A spare one each: a channel that was opened by chance of the moment is kept.
    await eventually(
        lambda: all(_files(cluster[name].pid) <= files + 1 for name, files in before.items()),
        within_s=WITHIN_S,
    )
    await _one_answer(cluster)


async def _come_and_go(cluster: Cluster, number: int, rng: random.Random) -> None:
    await asyncio.sleep(rng.uniform(0, 2))
    with contextlib.suppress(OSError):
        _, writer = await asyncio.open_connection(HOST, cluster["router"].http_port)
        data = http_request(f"socket {number}", stream=number % 2 == 0)
        writer.write(data[: rng.choice((0, len(data) // 2, len(data), len(data)))])
        await asyncio.sleep(rng.uniform(0, 0.7))
        if rng.random() < 0.3:
            writer.transport.abort()
        writer.close()


async def _one_answer(cluster: Cluster) -> None:
    async with httpx.AsyncClient(
        trust_env=False, base_url=cluster["router"].url, timeout=WITHIN_S
    ) as client:
        assert (await client.post(ENDPOINT, json=chat("one", 2))).status_code == 200


async def _none_running(cluster: Cluster) -> bool:
    """The scheduler holds no grant of theirs, and no place in the queue."""
    async with cluster.channel("scheduler") as channel:
        fleets = await scheduler_pb2_grpc.SchedulerStub(channel).GetFleets(
            scheduler_pb2.GetFleetsRequest(), timeout=WITHIN_S
        )
    return all(
        not fleet.queued_steps and not any(server.granted_steps for server in fleet.servers)
        for fleet in fleets.fleets
    )


def _files(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def http_request(text: str, *, stream: bool) -> bytes:
    body = json.dumps(chat(text, LONG, stream=stream)).encode()
    head = f"POST {ENDPOINT} HTTP/1.1\r\nHost: {HOST}\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def grpc_request(text: str) -> router_pb2.CompleteRequest:
    return router_pb2.CompleteRequest(endpoint=ENDPOINT, body_json=json.dumps(chat(text, LONG)))
