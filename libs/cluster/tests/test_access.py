"""Access that is taken away from running members, and given back."""

from __future__ import annotations

import asyncio
import logging

import pytest

from libs.cluster.access import follow_access
from libs.cluster.client import EtcdClient
from libs.cluster.election import Election
from libs.cluster.members import Members
from libs.cluster.membership import Membership
from libs.testing.etcd import EtcdProcess
from libs.testing.waiting import eventually

WITHIN_S = 30.0


async def test_a_member_waits_while_it_is_refused_and_goes_on_afterwards(
    own_etcd: EtcdProcess, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    own_etcd.enable_auth(password="first")
    password = ["first"]
    async with (
        EtcdClient([own_etcd.endpoint], user="root", password=lambda: password[0]) as client,
        EtcdClient([own_etcd.endpoint], user="root", password="second") as other,
        Membership(client, name, "m", {}, incarnation="x", ttl_s=2) as member,
        Members(client, name) as members,
        asyncio.timeout(2 * WITHIN_S),
    ):
        told: list[bool] = []
        asking = asyncio.create_task(follow_access(client, told.append, every_s=0.05))
        own_etcd.change_password("second")
        await eventually(lambda: told == [False])
        # Its registration goes, and the next one is refused.
        entry = await other.get(member.key)
        assert entry is not None
        await other.revoke(entry.lease)
        standing = asyncio.create_task(Election(client, name, "m", ttl_s=2).campaign())
        await eventually(lambda: _refusals(caplog) >= 2)
        await eventually(lambda: not member.registered)
        assert not standing.done()

        password[0] = "second"
        await eventually(lambda: told == [False, True])
        await (await standing).resign()
        await eventually(lambda: member.registered)
        await members.wait_until(lambda: members.current()["m"].epoch == member.epoch)
        asking.cancel()
    assert "first" not in caplog.text and "second" not in caplog.text


def _refusals(caplog: pytest.LogCaptureFixture) -> int:
    """Of those that have said that they are refused: who asks for access, and who stands."""
    who = ("libs.cluster.access", "libs.cluster.election")
    return len({r.name for r in caplog.records if r.name in who and "refused" in r.getMessage()})


async def test_a_watch_logs_in_again_after_etcd_forgot_who_it_was(
    own_etcd: EtcdProcess, name: str
) -> None:
    own_etcd.enable_auth(password="right")
    async with (
        EtcdClient([own_etcd.endpoint], user="root", password="right") as client,
        EtcdClient([own_etcd.endpoint], user="root", password="right") as other,
        Members(client, name) as members,
        asyncio.timeout(WITHIN_S),
    ):
        own_etcd.kill()
        await asyncio.to_thread(own_etcd.start)
        async with Membership(other, name, "m", {}, incarnation="x", ttl_s=2):
            await members.wait_for(1)
