"""One leader at a time, higher epochs, and no write by a leader of the past."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

from libs.cluster.client import EtcdClient
from libs.cluster.election import Election, Leader
from libs.cluster.ops import Put
from libs.testing.etcd import EtcdProcess
from libs.testing.waiting import eventually

WITHIN_S = 20.0


async def test_the_first_candidate_leads_and_a_standby_takes_over_when_it_resigns(
    client: EtcdClient, name: str
) -> None:
    first, second = Election(client, name, "one", ttl_s=2), Election(client, name, "two", ttl_s=2)
    leadership = await first.campaign()
    standby = asyncio.create_task(second.campaign())
    assert await second.leader() == Leader("one", leadership.epoch)
    await leadership.resign()
    assert leadership.lost.is_set() and not leadership.held
    async with asyncio.timeout(WITHIN_S), await standby as successor:
        assert successor.epoch > leadership.epoch
        assert await first.leader() == Leader("two", successor.epoch)


async def test_of_many_candidates_exactly_one_leads(client: EtcdClient, name: str) -> None:
    candidates = [Election(client, name, str(each), ttl_s=2) for each in range(5)]
    campaigns = [asyncio.create_task(each.campaign()) for each in candidates]
    epochs = []
    for _ in candidates:
        done, _ = await asyncio.wait(
            campaigns, timeout=WITHIN_S, return_when=asyncio.FIRST_COMPLETED
        )
        (winner,) = done
        campaigns.remove(winner)
        leadership = await winner
        assert leadership.held
        epochs.append(leadership.epoch)
        await leadership.resign()
    assert epochs == sorted(set(epochs))


async def test_a_stale_leader_cannot_write_and_learns_that_it_lost(
    client: EtcdClient, name: str, prefix: str
) -> None:
    first, second = Election(client, name, "one", ttl_s=2), Election(client, name, "two", ttl_s=2)
    stale = await first.campaign()
    written = await client.txn([stale.guard()], then=[Put(prefix + "a", b"one")])
    assert written.succeeded
    standby = asyncio.create_task(second.campaign())
    # Its lease ends in etcd without its knowing: what a pause beyond the time to live looks like.
    entry = await client.get(stale.key)
    assert entry is not None
    await client.revoke(entry.lease)
    async with asyncio.timeout(WITHIN_S), await standby as successor:
        late = await client.txn([stale.guard()], then=[Put(prefix + "a", b"stale")])
        assert not late.succeeded
        fresh = await client.txn([successor.guard()], then=[Put(prefix + "a", b"two")])
        assert fresh.succeeded
        await stale.lost.wait()
    now = await client.get(prefix + "a")
    assert now is not None and now.value == b"two"


async def test_a_campaign_waits_through_an_outage(
    own_etcd: EtcdProcess, own_client: EtcdClient, name: str
) -> None:
    own_etcd.kill()
    campaign = asyncio.create_task(Election(own_client, name, "one", ttl_s=2).campaign())
    await asyncio.to_thread(own_etcd.start)
    async with asyncio.timeout(WITHIN_S):
        leadership = await campaign
    assert leadership.held
    await leadership.resign()


async def test_a_leader_cut_off_from_etcd_steps_down_and_one_leads_afterwards(
    own_etcd: EtcdProcess, own_client: EtcdClient, name: str
) -> None:
    one = await Election(own_client, name, "one", ttl_s=2).campaign()
    own_etcd.pause()
    await eventually(lambda: not one.held)
    loop, over = asyncio.get_running_loop(), asyncio.get_running_loop().time() + 1.0
    await eventually(lambda: loop.time() > over)
    own_etcd.resume()
    async with asyncio.timeout(WITHIN_S):
        await one.lost.wait()
        two = await Election(own_client, name, "two", ttl_s=2).campaign()
    assert two.epoch > one.epoch
    await one.resign()
    await two.resign()


async def test_a_leader_stays_one_through_an_outage_in_which_nothing_could_expire(
    own_etcd: EtcdProcess, own_client: EtcdClient, name: str, prefix: str
) -> None:
    one = await Election(own_client, name, "one", ttl_s=2).campaign()
    own_etcd.kill()
    await eventually(lambda: not one.held)
    await asyncio.to_thread(own_etcd.start)
    await eventually(lambda: one.held)
    written = await own_client.txn([one.guard()], then=[Put(prefix + "a", b"one")])
    assert written.succeeded
    await one.resign()


async def test_an_observer_sees_each_leader_in_turn(client: EtcdClient, name: str) -> None:
    election = Election(client, name, "one", ttl_s=2)
    async with asyncio.timeout(WITHIN_S), aclosing(election.observe()) as leaders:
        assert await anext(leaders) is None
        for _ in range(2):
            leadership = await election.campaign()
            assert await anext(leaders) == Leader("one", leadership.epoch)
            await leadership.resign()
            assert await anext(leaders) is None


async def test_a_campaign_that_is_cancelled_leaves_no_leader_behind(
    client: EtcdClient, name: str
) -> None:
    holder = await Election(client, name, "one", ttl_s=2).campaign()
    waiting = asyncio.create_task(Election(client, name, "two", ttl_s=2).campaign())
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    await holder.resign()
    assert await Election(client, name, "three").leader() is None
