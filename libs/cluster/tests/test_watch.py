"""A watch's state equals etcd's, whatever happens between."""

from __future__ import annotations

import asyncio

import pytest

from libs.cluster.client import EtcdClient
from libs.cluster.errors import ClusterUnavailable
from libs.cluster.watch import DeleteEvent, PutEvent, Snapshot, Watch, WatchItem
from libs.testing.etcd import EtcdProcess, free_ports
from libs.testing.waiting import eventually

WITHIN_S = 15.0


class Replica:
    """Applies the items as a consumer would."""

    def __init__(self, watch: Watch) -> None:
        self.watch = watch
        self.state: dict[str, bytes] = {}
        self.items: list[WatchItem] = []

    async def step(self) -> WatchItem:
        async with asyncio.timeout(WITHIN_S):
            item = await anext(self.watch)
        self.items.append(item)
        match item:
            case Snapshot(entries=entries):
                self.state = {entry.key: entry.value for entry in entries}
            case PutEvent(entry=entry):
                self.state[entry.key] = entry.value
            case DeleteEvent(key=key):
                self.state.pop(key, None)
        return item

    async def until(self, wanted: dict[str, bytes]) -> None:
        while self.state != wanted:
            await self.step()


async def test_a_snapshot_comes_first_then_every_change_in_order(
    client: EtcdClient, prefix: str
) -> None:
    before = await client.put(prefix + "a", b"1")
    async with client.watch(prefix) as watch:
        replica = Replica(watch)
        snapshot = await replica.step()
        assert isinstance(snapshot, Snapshot)
        assert [entry.mod_revision for entry in snapshot.entries] == [before]
        await client.put(prefix + "a", b"2")
        await client.put(prefix + "b", b"3")
        deleted = await client.delete(prefix + "a")
        assert deleted
        await replica.until({prefix + "b": b"3"})
    assert [type(item) for item in replica.items] == [Snapshot, PutEvent, PutEvent, DeleteEvent]


async def test_neighbouring_prefixes_are_not_seen(client: EtcdClient, prefix: str) -> None:
    async with client.watch(prefix) as watch:
        await anext(watch)
        await client.put(prefix.rstrip("/") + "0", b"")
        await client.put(prefix + "mine", b"")
        item = await anext(watch)
        assert isinstance(item, PutEvent) and item.entry.key == prefix + "mine"


async def test_an_iteration_that_is_cancelled_loses_no_event(
    client: EtcdClient, prefix: str
) -> None:
    async with client.watch(prefix) as watch:
        await anext(watch)
        waiting = asyncio.create_task(watch.__anext__())
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        revision = await client.put(prefix + "a", b"1")
        item = await anext(watch)
        assert isinstance(item, PutEvent) and item.entry.mod_revision == revision


async def test_a_watch_resumes_after_a_restart_without_loss_or_repetition(
    own_etcd: EtcdProcess, own_client: EtcdClient, prefix: str
) -> None:
    async with own_client.watch(prefix, silence_s=0.5) as watch:
        replica = Replica(watch)
        await replica.step()
        await own_client.put(prefix + "a", b"1")
        await replica.step()
        waiting = asyncio.create_task(replica.step())
        own_etcd.kill()
        await asyncio.to_thread(own_etcd.start)
        async with EtcdClient([own_etcd.endpoint]) as other:
            await other.put(prefix + "b", b"2")
            await other.delete(prefix + "a")
        await waiting
        await replica.until({prefix + "b": b"2"})
    assert [type(item) for item in replica.items] == [Snapshot, PutEvent, PutEvent, DeleteEvent]


async def test_after_a_compaction_the_state_is_equal_again(
    own_etcd: EtcdProcess, own_client: EtcdClient, prefix: str
) -> None:
    await own_client.put(prefix + "stays", b"0")
    await own_client.put(prefix + "goes", b"0")
    async with own_client.watch(prefix, silence_s=0.5) as watch:
        replica = Replica(watch)
        await replica.step()
        # Nobody reads the watch now; its stream dies and history moves on beyond its revision.
        own_etcd.kill()
        await asyncio.to_thread(own_etcd.start)
        await own_client.delete(prefix + "goes")
        for value in (b"1", b"2", b"3"):
            last = await own_client.put(prefix + "stays", value)
        await own_client.compact(last)
        await replica.until({prefix + "stays": b"3"})
        assert isinstance(replica.items[-1], Snapshot)
        await own_client.put(prefix + "new", b"4")
        await replica.until({prefix + "stays": b"3", prefix + "new": b"4"})


async def test_a_silent_server_is_noticed_and_the_watch_goes_on_elsewhere(
    own_etcd: EtcdProcess, prefix: str
) -> None:
    async with (
        EtcdClient([own_etcd.endpoint], per_try_timeout_s=0.3) as client,
        client.watch(prefix, silence_s=0.3) as watch,
    ):
        replica = Replica(watch)
        await replica.step()
        waiting = asyncio.create_task(replica.step())
        await eventually(lambda: watch.connected)
        own_etcd.pause()
        # Two silences make an outage: the stream is given up though its connection still stands.
        await eventually(lambda: not watch.connected)
        own_etcd.resume()
        await client.put(prefix + "a", b"1")
        item = await waiting
        assert isinstance(item, PutEvent) and item.entry.key == prefix + "a"
        assert watch.recovered_at > float("-inf")


async def test_a_watch_that_cannot_begin_says_so() -> None:
    (port,) = free_ports(1)
    async with (
        EtcdClient([f"127.0.0.1:{port}"], deadline_s=0.2) as client,
        client.watch("/impala/") as watch,
    ):
        with pytest.raises(ClusterUnavailable):
            await anext(watch)
