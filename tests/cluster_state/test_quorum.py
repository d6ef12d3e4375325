"""An etcd of three members that lose and regain one another under a batch and chats."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager

import httpx
import pytest
import pytest_asyncio

from libs.cluster.client import EtcdClient
from libs.testing.etcd import EtcdProcess, etcd_cluster
from libs.testing.waiting import eventually
from tests.cluster_state.setup import (
    ELECTION_TTL_S,
    MEMBER_TTL_S,
    WITHIN_S,
    client_of,
    completed,
    each_line_once,
    leader,
    passes,
    running,
)
from tests.services.cluster import Cluster
from tests.services.load import Load, loaded, submit

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(400),
    pytest.mark.xdist_group("cluster-state-quorum"),
    pytest.mark.asyncio(loop_scope="module"),
]
TOKENS = 8
LINES = 150


@pytest.fixture(scope="module")
def etcds() -> Iterator[list[EtcdProcess]]:
    with etcd_cluster() as etcds:
        yield etcds


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(
    tmp_path_factory: pytest.TempPathFactory, etcds: list[EtcdProcess]
) -> AsyncIterator[Cluster]:
    endpoints = ",".join(each.endpoint for each in etcds)
    async with running(tmp_path_factory.mktemp("quorum") / "c", endpoints) as cluster:
        yield cluster


def kill(etcd: EtcdProcess) -> None:
    etcd.kill()


def start(etcd: EtcdProcess) -> None:
    etcd.launch()


Break = Callable[[EtcdProcess], None]
KILL: tuple[Break, Break] = (kill, start)
PAUSE: tuple[Break, Break] = (EtcdProcess.pause, EtcdProcess.resume)


@pytest.mark.parametrize("how", [KILL, PAUSE], ids=["killed", "paused"])
@pytest.mark.parametrize("leads", [True, False], ids=["leader", "follower"])
async def test_one_lost_member_stops_nothing(
    cluster: Cluster, etcds: list[EtcdProcess], leads: bool, how: tuple[Break, Break]
) -> None:
    """All that works on goes on, and what is new is agreed on, while it is away."""
    victim = next(each for each in etcds if each.leads() == leads)
    async with under_load(cluster, [victim], how) as client:
        await passes(2 * ELECTION_TTL_S)
        during = await submit(client, 10, TOKENS)
        await each_line_once(client, during, 10)


@pytest.mark.parametrize("how", [KILL, PAUSE], ids=["killed", "paused"])
async def test_a_lost_quorum_is_waited_for(
    cluster: Cluster, etcds: list[EtcdProcess], how: tuple[Break, Break]
) -> None:
    victims = sorted(etcds, key=EtcdProcess.leads)[1:]
    async with under_load(cluster, victims, how) as client:
        await passes(MEMBER_TTL_S + 2.0)
        refused = await client.post("/imp/v1/jobs", json={"model": "scripted"})
        assert refused.status_code == 503 and refused.headers["retry-after"] == "1", refused.text


@asynccontextmanager
async def under_load(
    cluster: Cluster, victims: Sequence[EtcdProcess], how: tuple[Break, Break]
) -> AsyncIterator[httpx.AsyncClient]:
    """Breaks these members while a batch and chats go on, and mends them after the block; then the
    batch must end with every line once, no chat may have failed, and the fleet has a leader."""
    load = Load(TOKENS)
    async with client_of(cluster) as client, loaded([cluster["router"]], load):
        batch = await submit(client, LINES, TOKENS)
        await completed(client, batch, 4)
        for each in victims:
            how[0](each)
        answered = load.least
        try:
            yield client
            await eventually(lambda: load.least > answered, within_s=WITHIN_S)
        finally:
            for each in victims:
                how[1](each)
        await each_line_once(client, batch, LINES)
    assert load.failures == []
    for each in victims:
        await asyncio.to_thread(each.wait_ready)
    async with EtcdClient(cluster.etcd.split(",")) as direct:
        await leader(direct)
