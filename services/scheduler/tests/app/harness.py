"""A scheduler in this process against a real etcd, and the world it works in."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec
import orjson

from impala.scheduler.v1 import scheduler_pb2_grpc
from libs.clock import SystemClock
from libs.cluster.client import EtcdClient
from libs.cluster.membership import Membership
from libs.cluster.watch import PutEvent, Snapshot
from libs.objects import ObjectStore
from libs.obs import Metrics
from libs.records import ids, keys
from libs.records.batch import TERMINAL, BatchRecord, FileRecord, LedgerRecord, RunRecord
from libs.records.members import SchedulerInfo
from libs.rpc import connect
from libs.testing.rpc import serving
from services.scheduler.adapters.batch_routers import GrpcBatchRouters
from services.scheduler.adapters.channels import Channels
from services.scheduler.adapters.model_servers import GrpcModelServers
from services.scheduler.api import SERVICE, SchedulerApi
from services.scheduler.app.executor import RunSettings
from services.scheduler.app.intake import IntakeSettings
from services.scheduler.app.leader import Deps
from services.scheduler.app.run_log import FlushPolicy
from services.scheduler.app.scheduler import Scheduler
from services.scheduler.app.views import ClusterViews
from services.scheduler.core.fleet import FleetLimits
from services.scheduler.core.run import RunLimits
from services.scheduler.testing import (
    ACCOUNT,
    FLEET,
    FakeModelServer,
    FakeRouter,
    Submitted,
    Submitter,
    model_server_member,
    router_member,
)

T = TypeVar("T", bound=msgspec.Struct)

DEADLINE_S = 60.0
FAST = RunSettings(
    flush=FlushPolicy(interval_s=0.02),
    limits=RunLimits(max_attempts=3, backoff_s=0.01),
    stop_within_s=2.0,
    settle_within_s=0.2,
    look_every_s=0.05,
    reopen_after_s=0.05,
)


@dataclass
class Running:
    """A scheduler member."""

    scheduler: Scheduler
    stub: scheduler_pb2_grpc.SchedulerAsyncStub
    address: str
    task: asyncio.Task[None]
    client: EtcdClient


@asynccontextmanager
async def scheduler_member(
    client: EtcdClient,
    objects: ObjectStore,
    member_id: str = "sched-1",
    settings: RunSettings = FAST,
    limits: FleetLimits | None = None,
    intake: IntakeSettings | None = None,
) -> AsyncIterator[Running]:
    clock = SystemClock()
    channels = Channels()
    async with ClusterViews(client) as views:
        deps = Deps(
            client=client,
            objects=objects,
            views=views,
            routers=GrpcBatchRouters(channels, lambda: "secret"),
            servers=GrpcModelServers(channels, clock, 0.05),
            clock=clock,
            new_file_id=lambda: ids.file_id(int(clock.time() * 1000), secrets.token_bytes(8)),
            limits=limits or FleetLimits(),
            runs=settings,
            metrics=Metrics(),
        )
        scheduler = Scheduler(member_id, deps, election_ttl_s=2, intake=intake)
        add = scheduler_pb2_grpc.add_SchedulerServicer_to_server
        async with serving((add, SchedulerApi(scheduler)), names=[SERVICE]) as rpc:
            info = SchedulerInfo(address=rpc.address, incarnation=member_id)
            membership = Membership(
                client, "scheduler", member_id, msgspec.to_builtins(info), incarnation=member_id
            )
            async with membership, connect(rpc.address) as channel:
                task = asyncio.create_task(scheduler.run())
                stub = scheduler_pb2_grpc.SchedulerStub(channel)
                try:
                    yield Running(scheduler, stub, rpc.address, task, client)
                finally:
                    task.cancel()
                    await asyncio.gather(task, return_exceptions=True)
                    await channels.close()


@dataclass
class World:
    client: EtcdClient
    objects: ObjectStore
    router: FakeRouter
    server: FakeModelServer
    submitter: Submitter

    async def batch(self, submitted: Submitted) -> BatchRecord:
        return await read(self.client, keys.batch(ACCOUNT, submitted.batch_id), BatchRecord)

    async def run(self, submitted: Submitted) -> RunRecord:
        return await read(self.client, keys.run(submitted.run_id), RunRecord)

    async def ended(self, submitted: Submitted) -> BatchRecord:
        return await until(
            self.client,
            keys.batch(ACCOUNT, submitted.batch_id),
            BatchRecord,
            lambda batch: batch.status in TERMINAL,
        )

    async def run_begun(self, submitted: Submitted) -> RunRecord:
        return await self.recorded(submitted, 0)

    async def recorded(self, submitted: Submitted, lines: int) -> RunRecord:
        """Once so many lines are recorded."""
        return await until(
            self.client,
            keys.run(submitted.run_id),
            RunRecord,
            lambda run: run.completed + run.failed >= lines,
        )

    async def custom_ids(self, file_id: str | None) -> list[str]:
        """Of the lines of an output or error file, in its order."""
        return [str(line["custom_id"]) for line in await self.lines(file_id)]

    async def usage(self, file_id: str | None) -> tuple[int, int, int]:
        """Prompt, cached and completion tokens, summed over the lines of an output file."""
        prompt = cached = completion = 0
        for line in await self.lines(file_id):
            usage = line["response"]["body"]["usage"]
            prompt += usage["prompt_tokens"]
            cached += usage["prompt_tokens_details"]["cached_tokens"]
            completion += usage["completion_tokens"]
        return prompt, cached, completion

    async def lines(self, file_id: str | None) -> list[dict[str, Any]]:
        if file_id is None:
            return []
        record = await read(self.client, keys.file(ACCOUNT, file_id), FileRecord)
        data = await self.objects.get(keys.file_object(ACCOUNT, file_id))
        assert record.bytes == len(data)
        assert record.purpose == "batch_output"
        assert data.endswith(b"\n") and data.isascii()
        return [orjson.loads(line) for line in data.splitlines()]


@asynccontextmanager
async def world(client: EtcdClient, objects: ObjectStore) -> AsyncIterator[World]:
    """One router, one model server and the job of their fleet."""
    router, server = FakeRouter(objects), FakeModelServer()
    submitter = Submitter(client, objects)
    await submitter.job()
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(router_member(client, router))
        await stack.enter_async_context(model_server_member(client, server))
        yield World(client, objects, router, server, submitter)


def tokens(ledger: LedgerRecord) -> tuple[int, int, int]:
    """As `World.usage` sums them."""
    return ledger.prompt_tokens, ledger.cached_tokens, ledger.completion_tokens


async def read(client: EtcdClient, key: str, kind: type[T]) -> T:
    entry = await client.get(key)
    assert entry is not None, f"{key} does not exist"
    return msgspec.json.decode(entry.value, type=kind)


async def until(client: EtcdClient, key: str, kind: type[T], holds: Callable[[T], bool]) -> T:
    """The record at `key` as soon as the condition holds."""
    async with asyncio.timeout(DEADLINE_S), client.watch(key) as watch:
        async for item in watch:
            entries = item.entries if isinstance(item, Snapshot) else ()
            if isinstance(item, PutEvent):
                entries = (item.entry,)
            for entry in entries:
                record = msgspec.json.decode(entry.value, type=kind)
                if entry.key == key and holds(record):
                    return record
    raise AssertionError("the watch ended")


async def leads(running: Running, fleet: str = FLEET) -> None:
    """Returns once the scheduler leads the fleet and has heard from a serving server."""
    await eventually(
        lambda: any(
            leader.fleet == fleet and leader.desk.state.serving
            for leader in running.scheduler.leaders()
        )
    )


async def eventually(holds: Callable[[], bool]) -> None:
    """Waits on a condition that nothing announces."""
    clock = SystemClock()
    async with asyncio.timeout(DEADLINE_S):
        while not holds():
            await clock.sleep(0.01)
