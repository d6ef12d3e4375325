"""Members register, are seen, come back after an outage, and are not dropped for etcd's faults."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from libs.cluster.client import EtcdClient
from libs.cluster.members import Members
from libs.cluster.membership import Membership
from libs.testing.etcd import EtcdProcess
from libs.testing.waiting import eventually

WITHIN_S = 20.0
TTL_S = 2


async def test_members_are_seen_with_their_info_until_they_leave(
    client: EtcdClient, name: str
) -> None:
    async with Members(client, name) as members:
        assert members.current() == {}
        first = Membership(client, name, "m-1", {"address": "a:1"}, incarnation="x")
        second = Membership(client, name, "m-2", {"address": "a:2"}, incarnation="y")
        async with second:
            await first.start()
            seen = await members.wait_for(2, timeout_s=WITHIN_S)
            assert {each: member.info["address"] for each, member in seen.items()} == {
                "m-1": "a:1",
                "m-2": "a:2",
            }
            assert (seen["m-1"].incarnation, seen["m-1"].epoch) == ("x", first.epoch)
            await first.leave()
            async with asyncio.timeout(WITHIN_S):
                await members.wait_until(lambda: list(members.current()) == ["m-2"])


async def test_new_info_replaces_the_old_under_the_same_epoch(
    client: EtcdClient, name: str
) -> None:
    async with (
        Membership(client, name, "m", {"load": 0}, incarnation="x") as membership,
        Members(client, name) as members,
    ):
        version = members.version
        await membership.update({"load": 1})
        async with asyncio.timeout(WITHIN_S):
            assert await members.changed(version) > version
        assert members.current()["m"].info == {"load": 1}
        assert members.current()["m"].epoch == membership.epoch


async def test_a_new_life_takes_the_place_of_the_old_one(client: EtcdClient, name: str) -> None:
    async with (
        Membership(client, name, "m", {}, incarnation="old", ttl_s=60) as old,
        Membership(client, name, "m", {}, incarnation="new", ttl_s=TTL_S) as new,
    ):
        assert new.epoch > old.epoch
        # Long before its lease would have ended, and without a write of its own.
        await asyncio.wait_for(old.superseded.wait(), WITHIN_S)
        assert not old.registered
        await asyncio.wait_for(old.update({"late": True}), WITHIN_S)
        async with Members(client, name) as members:
            assert members.current()["m"].incarnation == "new"


async def test_a_new_life_of_another_member_replaces_nobody(client: EtcdClient, name: str) -> None:
    async with (
        Membership(client, name, "m-1", {}, incarnation="x", ttl_s=TTL_S) as first,
        Membership(client, name, "m-10", {}, incarnation="y", ttl_s=TTL_S) as tenth,
    ):
        epoch = first.epoch
        async with Membership(client, name, "m-10", {}, incarnation="z", ttl_s=TTL_S):
            await asyncio.wait_for(tenth.superseded.wait(), WITHIN_S)
            await asyncio.wait_for(first.update({"still": "here"}), WITHIN_S)
            assert not first.superseded.is_set() and first.epoch == epoch


async def test_a_key_that_is_deleted_under_its_member_comes_back_with_a_new_epoch(
    client: EtcdClient, name: str
) -> None:
    async with Membership(client, name, "m", {}, incarnation="x", ttl_s=60) as membership:
        before = membership.epoch
        await client.delete(membership.key)
        await eventually(lambda: membership.registered and membership.epoch > before)
        entry = await client.get(membership.key)
        assert entry is not None and entry.create_revision == membership.epoch


async def test_a_registration_whose_lease_is_revoked_comes_back_with_a_new_epoch(
    client: EtcdClient, name: str
) -> None:
    epochs: list[int] = []
    async with Membership(
        client, name, "m", {}, incarnation="x", ttl_s=TTL_S, on_rejoin=epochs.append
    ) as membership:
        before = membership.epoch
        entry = await client.get(membership.key)
        assert entry is not None
        await client.revoke(entry.lease)
        await eventually(lambda: bool(epochs))
        assert epochs == [membership.epoch] and membership.epoch > before


async def test_an_outage_longer_than_the_lease_drops_nobody_and_everyone_is_registered_after_it(
    own_etcd: EtcdProcess, own_client: EtcdClient
) -> None:
    async with _two_members(own_client) as (one, two), _view(own_etcd) as members:
        await members.wait_for(2, timeout_s=WITHIN_S)
        epochs = {each.key: each.epoch for each in (one, two)}
        smallest = 2

        async def count() -> None:
            nonlocal smallest
            seen = members.version
            while True:
                seen = await members.changed(seen)
                smallest = min(smallest, len(members.current()))

        counting = asyncio.create_task(count())
        loop = asyncio.get_running_loop()
        paused_at = loop.time()
        own_etcd.pause()
        await eventually(lambda: not one.registered and not two.registered)
        await eventually(lambda: loop.time() > paused_at + 2 * TTL_S)
        assert len(members.current()) == 2
        own_etcd.resume()
        await eventually(lambda: one.registered and two.registered)
        async with asyncio.timeout(WITHIN_S):
            await members.wait_until(
                lambda: {m.epoch for m in members.current().values()} == {one.epoch, two.epoch}
            )
        counting.cancel()
        assert smallest == 2
        # An etcd that wakes may hear a keepalive before it looks for leases that are over.
        assert all(each.epoch >= epochs[each.key] for each in (one, two))


async def test_a_member_that_dies_in_the_outage_is_dropped_after_its_grace(
    own_etcd: EtcdProcess, own_client: EtcdClient
) -> None:
    async with _two_members(own_client) as (one, two), _view(own_etcd) as members:
        await members.wait_for(2, timeout_s=WITHIN_S)
        own_etcd.pause()
        await eventually(lambda: not one.registered and not two.registered)
        await two.leave()
        own_etcd.resume()
        async with asyncio.timeout(WITHIN_S):
            await members.wait_until(lambda: list(members.current()) == ["m-1"])
        assert members.doubted == frozenset()


@asynccontextmanager
async def _two_members(client: EtcdClient) -> AsyncIterator[tuple[Membership, Membership]]:
    async with (
        Membership(client, "modelserver", "m-1", {}, incarnation="x", ttl_s=TTL_S) as one,
        Membership(client, "modelserver", "m-2", {}, incarnation="y", ttl_s=TTL_S) as two,
    ):
        yield one, two


@asynccontextmanager
async def _view(etcd: EtcdProcess) -> AsyncIterator[Members]:
    async with (
        EtcdClient([etcd.endpoint], per_try_timeout_s=0.5) as client,
        Members(client, "modelserver", grace_s=3.0, silence_s=0.4) as members,
    ):
        yield members
