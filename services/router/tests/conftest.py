"""A real router on a real etcd and object store, before a model server and scheduler without a
model.

Most tests share one `stage`, which every test finds as new; what cannot be made as new (a drained
router, a leader that resigned, counts) is for a `fresh` one. All run on one event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx
import msgspec
import openai
import pytest
import pytest_asyncio
from tokenizers import Tokenizer

from libs.cluster.client import EtcdClient
from libs.cluster.election import Election, Leadership
from libs.cluster.membership import Membership
from libs.cluster.ops import Delete
from libs.objects import ObjectStore, open_store
from libs.obs import Metrics
from libs.records import keys
from libs.records.batch import Job
from libs.records.members import ModelServerInfo, SchedulerInfo
from libs.testing.etcd import EtcdProcess
from services.router.app import Router
from services.router.config import RouterConfig
from services.router.testing import FakeModelServer, FakeScheduler
from services.router.tests.tiny_model import MAX_CONTEXT, end_token, make_tiny_model

MODEL = "tiny"
FLEET = "tiny.float32"
GREETING = "Hello there, agent."


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents and pytest_asyncio.is_async_test(item):
            item.add_marker(pytest.mark.asyncio(loop_scope="session"), append=False)


@pytest.fixture(scope="session")
def etcd() -> Iterator[EtcdProcess]:
    with EtcdProcess() as process:
        yield process


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "tiny"
    make_tiny_model(folder)
    return folder


@pytest.fixture(scope="session")
def tokenizer(tiny_folder: Path) -> Tokenizer:
    return Tokenizer.from_file(str(tiny_folder / "tokenizer.json"))


@pytest_asyncio.fixture(loop_scope="session")
async def etcd_client(etcd: EtcdProcess) -> AsyncIterator[EtcdClient]:
    """An empty etcd."""
    async with EtcdClient([etcd.endpoint]) as client:
        await client.delete_prefix("/impala/")
        yield client


@dataclass
class Stage:
    """What a test acts on."""

    client: EtcdClient
    objects: ObjectStore
    tokenizer: Tokenizer
    folder: Path
    config: RouterConfig
    stack: AsyncExitStack
    servers: list[FakeModelServer] = field(default_factory=list)
    schedulers: list[FakeScheduler] = field(default_factory=list)
    routers: list[Router] = field(default_factory=list)
    metrics: Metrics = field(default_factory=Metrics)
    leaderships: list[Leadership] = field(default_factory=list)

    @property
    def router(self) -> Router:
        return self.routers[0]

    @property
    def server(self) -> FakeModelServer:
        return self.servers[0]

    @property
    def scheduler(self) -> FakeScheduler:
        return self.schedulers[0]

    def saying(self, text: str, *, ends: bool = True) -> Callable[[Any, int], Sequence[int]]:
        """A reply of the text's tokens; with `ends` the end token after it."""
        tokens = self.tokenizer.encode(text).ids
        tail = [end_token(self.tokenizer)] if ends else []
        return lambda request, choice: [*tokens, *tail]

    async def set_up(self) -> None:
        await self.add_server()
        await self.add_scheduler()
        await self.add_router()

    async def clear(self) -> None:
        """Takes away what a test left behind."""
        await self.server.reset(self.saying(GREETING))
        self.scheduler.reset()
        kinds = (keys.JOBS, keys.FILES, keys.FILE_REFS, keys.BATCHES, keys.CANCELS, keys.RUNS)
        gone = [Delete(kind, prefix=True) for kind in (*kinds, keys.IDEMPOTENCY)]
        await self.client.txn([], gone)
        for each in await self.objects.list():
            await self.objects.delete(each.key)
        await self.router_sees_jobs(0)

    async def add_server(self, text: str = GREETING) -> FakeModelServer:
        member = f"ms-{len(self.servers) + 1}"
        server = FakeModelServer(
            MODEL, self.saying(text), end_token(self.tokenizer), member_id=member
        )
        await server.start()
        self.stack.push_async_callback(server.stop)
        self.servers.append(server)
        info = ModelServerInfo(
            address=server.address,
            incarnation=f"i-{member}",
            model=MODEL,
            fleet=FLEET,
            precision="float32",
            phase="serving",
            source=str(self.folder),
            max_context=MAX_CONTEXT,
            vocab_size=self.tokenizer.get_vocab_size(),
            total_blocks=1000,
            weight_seq=7,
            weight_digest="00" * 32,
        )
        await self._join("modelserver", member, msgspec.to_builtins(info))
        return server

    async def add_scheduler(self) -> FakeScheduler:
        """Leads the fleet, and grants on the servers there are."""
        member = f"sched-{len(self.schedulers) + 1}"
        servers = [(server.member_id, server.address) for server in self.servers]
        scheduler = FakeScheduler(FLEET, servers)
        await scheduler.start()
        self.stack.push_async_callback(scheduler.stop)
        self.schedulers.append(scheduler)
        info = SchedulerInfo(address=scheduler.address, incarnation=f"i-{member}")
        await self._join("scheduler", member, msgspec.to_builtins(info))
        self.leaderships.append(await self.elect(keys.fleet_election(FLEET), member))
        return scheduler

    async def elect(self, election: str, member: str) -> Leadership:
        leadership = await Election(self.client, election, member).campaign()
        self.stack.push_async_callback(leadership.resign)
        return leadership

    async def _join(self, service: str, member: str, info: dict[str, Any]) -> None:
        membership = Membership(self.client, service, member, info, incarnation=info["incarnation"])
        await self.stack.enter_async_context(membership)

    async def add_router(self, **changes: Any) -> Router:
        config = replace(self.config, **changes)
        router = Router(config, metrics=self.metrics, objects=self.objects)
        await self.stack.enter_async_context(router)
        self.routers.append(router)
        return router

    async def add_job(self, model: str = MODEL, account: str = "local", job_id: str = "") -> Job:
        job = Job(
            id=job_id or "job-0000aaaa",
            model=model,
            fleet="",
            account=account,
            price_per_engine_hour=1.0,
            created_at=1,
        )
        await self.client.put(keys.job(job.id), msgspec.json.encode(job))
        return job

    async def router_sees_jobs(self, count: int) -> None:
        """Waits until the router's view has so many jobs of the local account."""
        jobs = self.router.parts.jobs
        async with asyncio.timeout(5):
            await jobs.wait_until(lambda: len(jobs.of_account("local")) == count)

    def openai(self, **changes: Any) -> openai.AsyncOpenAI:
        """The official client, which refuses every answer that is not by its types."""
        options: dict[str, Any] = {
            "base_url": f"{self.router.http_url}/v1",
            "api_key": "none",
            "_strict_response_validation": True,
            "max_retries": 0,
            # Loading the machine's certificates takes longer than all else here.
            "http_client": openai.DefaultAsyncHttpxClient(verify=False),
        }
        client = openai.AsyncOpenAI(**(options | changes))
        self.stack.push_async_callback(client.close)
        return client

    def http(self) -> httpx.AsyncClient:
        client = httpx.AsyncClient(base_url=self.router.http_url, timeout=20, verify=False)
        self.stack.push_async_callback(client.aclose)
        return client


def config_of(etcd: EtcdProcess, folder: Path) -> RouterConfig:
    return RouterConfig(
        port=0,
        http_port=0,
        etcd=(etcd.endpoint,),
        objects=str(folder / "objects"),
        cache=folder / "cache",
        no_auth=True,
        member="router-1",
        drain_s=2.0,
        scheduler_patience_s=0.3,
        server_patience_s=0.3,
    )


@pytest_asyncio.fixture(loop_scope="session")
async def bare(
    etcd: EtcdProcess,
    etcd_client: EtcdClient,
    tmp_path: Path,
    tiny_folder: Path,
    tokenizer: Tokenizer,
) -> AsyncIterator[Stage]:
    """etcd and an object store; the test adds the rest."""
    config = config_of(etcd, tmp_path)
    async with AsyncExitStack() as stack:
        objects = open_store(config.objects)
        yield Stage(etcd_client, objects, tokenizer, tiny_folder, config, stack)


@pytest_asyncio.fixture(loop_scope="session")
async def fresh(bare: Stage) -> Stage:
    """One model server, one leading scheduler, one router, for one test."""
    await bare.set_up()
    return bare


@pytest_asyncio.fixture(scope="package", loop_scope="session")
async def shared_stage(
    tmp_path_factory: pytest.TempPathFactory, tiny_folder: Path, tokenizer: Tokenizer
) -> AsyncIterator[Stage]:
    """On an etcd of its own, which no other test empties. Ended with this package's tests: the loop
    stands still afterwards."""
    async with AsyncExitStack() as stack:
        etcd = stack.enter_context(EtcdProcess())
        client = await stack.enter_async_context(EtcdClient([etcd.endpoint]))
        config = config_of(etcd, tmp_path_factory.mktemp("stage"))
        objects = open_store(config.objects)
        stage = Stage(client, objects, tokenizer, tiny_folder, config, stack)
        await stage.set_up()
        yield stage


@pytest_asyncio.fixture(loop_scope="session")
async def stage(shared_stage: Stage) -> AsyncIterator[Stage]:
    """One model server, one leading scheduler, one router; as new, and shared with other tests."""
    async with AsyncExitStack() as stack:
        yield replace(shared_stage, stack=stack)
    await shared_stage.clear()
