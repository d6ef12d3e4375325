"""Which leaders are listened to, against the elections' own records."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest

from libs.cluster.client import EtcdClient
from libs.cluster.election import Election
from libs.cluster.epochs import Epochs
from libs.errors import Aborted, InvalidArgument
from libs.testing.etcd import EtcdProcess

NAME = "fleet.f"


@pytest.fixture
def own_etcd() -> Iterator[EtcdProcess]:
    with EtcdProcess() as etcd:
        yield etcd


@pytest.fixture
async def client(own_etcd: EtcdProcess) -> AsyncIterator[EtcdClient]:
    async with EtcdClient([own_etcd.endpoint]) as client:
        yield client


async def elected(client: EtcdClient) -> int:
    """The epoch of a leader that has gone again."""
    async with await Election(client, NAME, "one", ttl_s=2).campaign() as leadership:
        return leadership.epoch


async def test_a_leader_is_believed_that_the_election_knows_and_an_older_one_refused(
    client: EtcdClient,
) -> None:
    epochs, old = Epochs(client), await elected(client)
    async with await Election(client, NAME, "two", ttl_s=2).campaign() as leadership:
        await epochs.check(NAME, leadership.epoch)
        with pytest.raises(Aborted, match="A leader of epoch"):
            await epochs.check(NAME, old)
        with pytest.raises(Aborted, match="Nobody was elected"):
            await epochs.check(NAME, leadership.epoch + 1)
        with pytest.raises(InvalidArgument):
            await epochs.check(NAME, 0)


async def test_an_older_leader_stays_refused_while_etcd_is_away(
    own_etcd: EtcdProcess,
) -> None:
    async with EtcdClient([own_etcd.endpoint], deadline_s=0.3) as client:
        epochs, old = Epochs(client), await elected(client)
        leadership = await Election(client, NAME, "two", ttl_s=2).campaign()
        await epochs.check(NAME, leadership.epoch)
        own_etcd.kill()
        with pytest.raises(Aborted, match="A leader of epoch"):
            await epochs.check(NAME, old)
        await epochs.check(NAME, leadership.epoch)
        await leadership.resign()


async def test_the_leaders_of_an_etcd_that_lost_its_data_are_believed_too(
    own_etcd: EtcdProcess, client: EtcdClient
) -> None:
    for _ in range(20):
        await client.put("/impala/test/a", b"")
    epochs = Epochs(client)
    before = await Election(client, NAME, "one", ttl_s=2).campaign()
    await epochs.check(NAME, before.epoch)
    own_etcd.kill()
    own_etcd.empty()
    await asyncio.to_thread(own_etcd.start)
    async with await Election(client, NAME, "two", ttl_s=2).campaign() as leadership:
        assert leadership.epoch < before.epoch
        await epochs.check(NAME, leadership.epoch)
        with pytest.raises(Aborted):
            await epochs.check(NAME, before.epoch)
    await before.resign()
