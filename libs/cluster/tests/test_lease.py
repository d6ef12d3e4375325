"""A lease holds its keys, and is known to be lost before they are given away."""

from __future__ import annotations

import asyncio

from libs.cluster.client import EtcdClient
from libs.cluster.lease import Lease
from libs.testing.etcd import EtcdProcess
from libs.testing.waiting import eventually

WITHIN_S = 15.0


async def test_a_lease_outlives_its_time_to_live_and_a_revoke_deletes_its_keys(
    client: EtcdClient, prefix: str
) -> None:
    lease = await client.lease(2)
    await client.put(prefix + "a", b"", lease=lease.id)
    first_end, loop = lease.expires_at, asyncio.get_running_loop()
    await eventually(lambda: loop.time() > first_end)
    assert lease.held
    assert await client.get(prefix + "a") is not None
    await lease.revoke()
    assert lease.lost.is_set() and not lease.held
    assert await client.get(prefix + "a") is None


async def test_a_lease_that_someone_revokes_is_lost(client: EtcdClient, prefix: str) -> None:
    lease = await client.lease(2)
    async with EtcdClient(client.transport.addresses) as operator:
        await operator.revoke(lease.id)
    async with asyncio.timeout(WITHIN_S):
        await lease.lost.wait()
    assert not lease.held


async def test_a_lease_is_not_held_once_etcd_may_expire_it_and_lost_once_etcd_says_so(
    own_etcd: EtcdProcess, own_client: EtcdClient, prefix: str
) -> None:
    lease = await own_client.lease(2)
    await own_client.put(prefix + "a", b"", lease=lease.id)
    own_etcd.pause()
    await eventually(lambda: not lease.held)
    await _surely_over(lease)
    assert not lease.lost.is_set(), "nobody knows yet"
    own_etcd.resume()
    async with asyncio.timeout(WITHIN_S):
        await lease.lost.wait()
    assert not lease.held
    assert await own_client.get(prefix + "a") is None


async def test_a_lease_that_etcd_could_not_expire_is_held_again(
    own_etcd: EtcdProcess, own_client: EtcdClient, prefix: str
) -> None:
    lease = await own_client.lease(2)
    await own_client.put(prefix + "a", b"", lease=lease.id)
    own_etcd.kill()
    await eventually(lambda: not lease.held)
    await asyncio.to_thread(own_etcd.start)
    await eventually(lambda: lease.held)
    entry = await own_client.get(prefix + "a")
    assert entry is not None and entry.lease == lease.id and not lease.lost.is_set()
    await lease.revoke()


async def test_a_lease_survives_a_short_restart(
    own_etcd: EtcdProcess, own_client: EtcdClient
) -> None:
    lease = await own_client.lease(4)
    first_end = lease.expires_at
    own_etcd.kill()
    await asyncio.to_thread(own_etcd.start)
    await eventually(lambda: lease.expires_at > first_end)
    assert lease.held
    await lease.revoke()


async def _surely_over(lease: Lease) -> None:
    """etcd counts from when it got the last renewal, which is later than when it was sent."""
    loop, end = asyncio.get_running_loop(), lease.expires_at + 1.0
    await eventually(lambda: loop.time() > end)
