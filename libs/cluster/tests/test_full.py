"""An etcd whose quota is used up takes no writes, and all goes on once it has room."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest

from libs.cluster.attempt import Applied, write_once
from libs.cluster.client import EtcdClient
from libs.cluster.election import Election
from libs.cluster.errors import StoreFull
from libs.cluster.membership import Membership
from libs.cluster.ops import Put
from libs.testing.etcd import EtcdProcess
from libs.testing.waiting import eventually

WITHIN_S = 30.0
QUOTA = 2 << 20


@pytest.fixture
def small_etcd() -> Iterator[EtcdProcess]:
    with EtcdProcess(extra=(f"--quota-backend-bytes={QUOTA}",)) as etcd:
        yield etcd


@pytest.fixture
async def full(small_etcd: EtcdProcess) -> AsyncIterator[EtcdClient]:
    """A client of the store when it is full."""
    async with EtcdClient([small_etcd.endpoint]) as client:
        await fill(client)
        yield client


async def fill(client: EtcdClient) -> int:
    """Writes until the store takes no more; the last revision."""
    revision, full = 0, False
    while not full:
        try:
            revision = await client.put("/impala/test/ballast", bytes(256 << 10))
        except StoreFull:
            full = True
    return revision


async def test_what_is_there_is_read_and_deleted_from_a_full_store(full: EtcdClient) -> None:
    found = await full.get_many(["/impala/test/ballast", "/impala/test/none"])
    assert [entry is not None for entry in found] == [True, False]
    assert await full.delete("/impala/test/ballast")
    with pytest.raises(StoreFull, match="takes no writes: compact"):
        await full.lease(5)


async def test_a_member_and_a_candidate_wait_for_room(
    small_etcd: EtcdProcess, full: EtcdClient, name: str
) -> None:
    async with asyncio.timeout(WITHIN_S):
        standing = asyncio.create_task(Election(full, name, "one", ttl_s=2).campaign())
        member = Membership(full, name, "m", {}, incarnation="x", ttl_s=2)
        joining = asyncio.create_task(member.start())
        entry = await full.get("/impala/test/ballast")
        assert entry is not None and not standing.done() and not joining.done()
        await asyncio.to_thread(small_etcd.reclaim_space, entry.mod_revision)
        await joining
        await (await standing).resign()
        assert member.registered
        await member.leave()


async def test_a_leader_stays_one_though_nothing_can_be_written(
    small_etcd: EtcdProcess, name: str
) -> None:
    async with EtcdClient([small_etcd.endpoint]) as client, asyncio.timeout(WITHIN_S):
        leadership = await Election(client, name, "one", ttl_s=2).campaign()
        last = await fill(client)
        loop = asyncio.get_running_loop()
        unrenewed_end = loop.time() + 3.0
        await eventually(lambda: loop.time() > unrenewed_end)
        assert leadership.held
        put = Put("/impala/test/result", b"token")
        with pytest.raises(StoreFull):
            await write_once(client, put, _is_ours, expected=0, guard=leadership.guard())
        await asyncio.to_thread(small_etcd.reclaim_space, last)
        done = await write_once(client, put, _is_ours, expected=0, guard=leadership.guard())
        assert isinstance(done, Applied)
        await leadership.resign()


def _is_ours(entry: object) -> bool:
    return getattr(entry, "value", b"") == b"token"
