"""How the leader follows its model servers' states."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator

import msgspec
import pytest

from impala.modelserver.v1 import modelserver_pb2_grpc
from libs.clock import SystemClock
from libs.cluster.client import EtcdClient
from libs.cluster.membership import Membership
from libs.obs import Metrics
from libs.records.members import ModelServerInfo
from libs.testing.rpc import free_port, serving
from services.scheduler.adapters.channels import Channels
from services.scheduler.adapters.model_servers import GrpcModelServers
from services.scheduler.app.desk import GrantDesk
from services.scheduler.app.servers import ServerWatcher
from services.scheduler.app.views import ClusterViews
from services.scheduler.core.server import SERVING, UNREACHABLE
from services.scheduler.ports import ServerReport
from services.scheduler.testing import FLEET, MODEL, FakeModelServer
from services.scheduler.tests.app.harness import eventually

LOGGER = "services.scheduler.app.servers"


class Counted:
    """Model servers, with how often a state stream was begun."""

    def __init__(self, servers: GrpcModelServers) -> None:
        self._servers = servers
        self.begun = 0

    def watch(self, address: str) -> AsyncIterator[ServerReport]:
        self.begun += 1
        return self._servers.watch(address)


async def test_a_server_that_is_not_heard_from_is_told_of_once_and_so_is_its_return(
    client: EtcdClient, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, LOGGER)
    clock, channels, port = SystemClock(), Channels(), free_port()
    servers = Counted(GrpcModelServers(channels, clock, 0.05))
    desk = GrantDesk(FLEET, 1, clock, metrics=Metrics())
    info = ModelServerInfo(
        address=f"127.0.0.1:{port}",
        incarnation="life-1",
        model=MODEL,
        fleet=FLEET,
        precision="float32",
        phase=SERVING,
        source=MODEL,
        max_context=2048,
        vocab_size=100,
        total_blocks=10,
    )
    member = Membership(
        client, "modelserver", "ms-1", msgspec.to_builtins(info), incarnation="life-1"
    )
    add = modelserver_pb2_grpc.add_ModelServerServicer_to_server

    def phase() -> str:
        return desk.state.servers["ms-1"].phase if desk.state.servers else ""

    async with ClusterViews(client) as views, member:
        watcher = ServerWatcher(FLEET, views, servers, desk, lambda *_: None, lambda _: None, clock)
        task = asyncio.create_task(watcher.run())
        await eventually(lambda: servers.begun >= 3)
        async with serving((add, FakeModelServer()), port=port):
            await eventually(lambda: phase() == SERVING)
        await eventually(lambda: phase() == UNREACHABLE)
        before = servers.begun
        await eventually(lambda: servers.begun >= before + 2)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    await channels.close()
    assert [record.message for record in caplog.records if record.name == LOGGER] == [
        "no state from a server",
        "a server tells its state again",
        "no state from a server",
    ]


async def test_the_end_of_a_streams_time_says_nothing_of_its_server() -> None:
    server, channels = FakeModelServer(), Channels()
    add = modelserver_pb2_grpc.add_ModelServerServicer_to_server
    async with serving((add, server)) as rpc:
        states = GrpcModelServers(channels, SystemClock(), 0.05, stream_s=0.2).watch(rpc.address)
        async with asyncio.timeout(10):
            while server.watches < 3:
                assert (await anext(states)).server.phase == SERVING
        await states.aclose()  # type: ignore[attr-defined]
    await channels.close()
