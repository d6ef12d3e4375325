"""Keys, compare-and-set and transactions against a real etcd."""

from __future__ import annotations

import asyncio

import pytest

from libs.cluster.client import EtcdClient
from libs.cluster.errors import (
    ClusterUnavailable,
    Compacted,
    LeaseLost,
    OutcomeUnknown,
    PermissionRefused,
    RequestRefused,
)
from libs.cluster.ops import Compare, Delete, Get, Put
from libs.cluster.watch import PutEvent
from libs.testing.etcd import EtcdProcess, free_ports


async def test_a_key_is_written_read_and_deleted(client: EtcdClient, prefix: str) -> None:
    key = prefix + "a"
    assert await client.get(key) is None
    revision = await client.put(key, b"one")
    entry = await client.get(key)
    assert entry is not None
    assert (entry.value, entry.mod_revision, entry.create_revision, entry.lease) == (
        b"one",
        revision,
        revision,
        0,
    )
    assert await client.delete(key)
    assert not await client.delete(key)
    assert await client.get(key) is None


async def test_of_two_writers_with_the_same_expectation_exactly_one_wins(
    client: EtcdClient, prefix: str
) -> None:
    key = prefix + "raced"
    for _ in range(10):
        entry = await client.get(key)
        expected = entry.mod_revision if entry else None
        results = await asyncio.gather(
            client.cas(key, expected, b"left"), client.cas(key, expected, b"right")
        )
        winners = [result for result in results if result is not None]
        assert len(winners) == 1
        now = await client.get(key)
        assert now is not None
        assert now.mod_revision == winners[0]
        assert now.value == (b"left" if results[0] else b"right")


async def test_cas_expecting_absence_refuses_a_key_that_exists(
    client: EtcdClient, prefix: str
) -> None:
    assert await client.cas(prefix + "a", None, b"first") is not None
    assert await client.cas(prefix + "a", None, b"second") is None


async def test_many_keys_are_read_in_the_order_asked_for(client: EtcdClient, prefix: str) -> None:
    await client.put(prefix + "200", b"x")
    keys = [f"{prefix}{number}" for number in range(300)]
    found = await client.get_many(keys)
    assert [entry.key for entry in found if entry] == [prefix + "200"]
    assert len(found) == 300 and found[200] is not None
    assert await client.get_many([]) == []


async def test_a_list_is_complete_and_ordered_beyond_one_page(
    client: EtcdClient, prefix: str
) -> None:
    names = [f"{prefix}{index:04}" for index in range(1005)]
    for start in range(0, len(names), 100):
        await client.txn([], [Put(each, b"") for each in names[start : start + 100]])
    listing = await client.list(prefix)
    assert [entry.key for entry in listing.entries] == names
    page = await client.list(prefix, limit=2, after=names[6])
    assert [entry.key for entry in page.entries] == names[7:9]
    assert page.more
    assert await client.delete_prefix(prefix) == 1005


async def test_a_descending_list_is_the_ascending_one_backwards(
    client: EtcdClient, prefix: str
) -> None:
    names = [f"{prefix}{index:04}" for index in range(1005)]
    for start in range(0, len(names), 100):
        await client.txn([], [Put(each, b"") for each in names[start : start + 100]])
    listing = await client.list(prefix, descending=True)
    assert [entry.key for entry in listing.entries] == names[::-1]
    page = await client.list(prefix, limit=2, after=names[6], descending=True)
    assert [entry.key for entry in page.entries] == [names[5], names[4]]
    assert page.more
    # A cursor goes on from its place whether or not its key is there any more.
    await client.delete(names[2])
    last = await client.list(prefix, limit=2, after=names[2], descending=True)
    assert [entry.key for entry in last.entries] == [names[1], names[0]]
    assert not last.more
    none = await client.list(prefix, limit=2, after=names[0], descending=True)
    assert (none.entries, none.more) == ((), False)


async def test_newest_first_pages_follow_creation_not_the_last_write(
    client: EtcdClient, prefix: str
) -> None:
    for each in ("c", "a", "b"):
        await client.put(prefix + each, b"")
    await client.put(prefix + "c", b"rewritten")
    first = await client.list_newest(prefix, limit=2)
    assert [entry.key[-1] for entry in first.entries] == ["b", "a"]
    assert first.more
    rest = await client.list_newest(
        prefix, limit=2, created_before=first.entries[-1].create_revision
    )
    assert [entry.key[-1] for entry in rest.entries] == ["c"]
    assert not rest.more


async def test_a_transaction_runs_one_branch_at_one_revision(
    client: EtcdClient, prefix: str
) -> None:
    one, two = prefix + "1", prefix + "2"
    done = await client.txn(
        [Compare.absent(one), Compare.absent(two)], then=[Put(one, b"1"), Put(two, b"2")]
    )
    assert done.succeeded
    entries = (await client.list(prefix)).entries
    assert {entry.mod_revision for entry in entries} == {done.revision}

    refused = await client.txn(
        [Compare.value_is(one, b"1"), Compare.mod(two) == 1],
        then=[Delete(one)],
        else_=[Get(two), Get(prefix, prefix=True)],
    )
    assert not refused.succeeded
    assert refused.entry() == entries[1]
    assert refused.reads[1] == entries

    gone = await client.txn(
        [Compare.create(one) == done.revision, Compare.lease(one) == 0],
        then=[Delete(prefix, prefix=True)],
    )
    assert gone.deleted == (2,)


async def test_an_older_revision_is_read_until_it_is_compacted(
    own_client: EtcdClient, prefix: str
) -> None:
    first = await own_client.put(prefix + "a", b"1")
    second = await own_client.put(prefix + "a", b"2")
    old = await own_client.get(prefix + "a", revision=first)
    assert old is not None and old.value == b"1"
    await own_client.compact(second)
    with pytest.raises(Compacted):
        await own_client.get(prefix + "a", revision=first)


async def test_a_put_under_a_lease_that_is_gone_is_refused(client: EtcdClient, prefix: str) -> None:
    with pytest.raises(LeaseLost):
        await client.put(prefix + "a", b"", lease=123456789)


async def test_what_etcd_refuses_is_not_retried(client: EtcdClient, prefix: str) -> None:
    with pytest.raises(RequestRefused, match="duplicate key"):
        await client.txn([], [Put(prefix + "a", b"1"), Put(prefix + "a", b"2")])


async def test_an_unreachable_etcd_is_one_clear_sentence() -> None:
    (port,) = free_ports(1)
    async with EtcdClient([f"127.0.0.1:{port}"], deadline_s=0.3) as client:
        with pytest.raises(ClusterUnavailable) as caught:
            await client.get("/impala/a")
        sentence = f"etcd at 127.0.0.1:{port} cannot be reached: connection refused"
        assert str(caught.value) == sentence
        # A write that could not leave is no unknown outcome.
        with pytest.raises(ClusterUnavailable):
            await client.put("/impala/a", b"")


async def test_calls_go_to_the_endpoint_that_answers(shared_etcd: EtcdProcess, prefix: str) -> None:
    (port,) = free_ports(1)
    async with EtcdClient([f"127.0.0.1:{port}", shared_etcd.endpoint]) as client:
        await client.put(prefix + "a", b"1")
        assert await client.get(prefix + "a") is not None


async def test_calls_wait_out_a_restart_within_their_deadline(
    own_etcd: EtcdProcess, own_client: EtcdClient, prefix: str
) -> None:
    await own_client.put(prefix + "a", b"1")
    own_etcd.kill()
    reading = asyncio.create_task(own_client.get(prefix + "a"))
    await asyncio.to_thread(own_etcd.start)
    entry = await reading
    assert entry is not None and entry.value == b"1"


async def test_a_write_without_an_answer_is_sent_once_and_said_to_be_unknown(
    own_etcd: EtcdProcess, prefix: str
) -> None:
    async with EtcdClient([own_etcd.endpoint], write_timeout_s=0.3) as client:
        first = await client.put(prefix + "a", b"1")
        own_etcd.pause()
        with pytest.raises(OutcomeUnknown):
            await client.put(prefix + "a", b"2")
        own_etcd.resume()
        entry = await client.get(prefix + "a")
        # Applied once or not at all.
        assert entry is not None and entry.mod_revision in (first, first + 1)


async def test_a_wrong_password_is_refused_at_once_and_a_right_one_works(
    own_etcd: EtcdProcess, prefix: str
) -> None:
    own_etcd.enable_auth(password="right")
    async with EtcdClient([own_etcd.endpoint], user="root", password="wrong") as client:
        with pytest.raises(PermissionRefused, match="authentication failed"):
            await client.get(prefix + "a")
    async with EtcdClient([own_etcd.endpoint]) as client:
        with pytest.raises(PermissionRefused):
            await client.put(prefix + "a", b"")
    async with EtcdClient([own_etcd.endpoint], user="root", password="right") as client:
        await client.put(prefix + "a", b"1")
        # A token that the server no longer knows is replaced behind the scenes.
        own_etcd.kill()
        await asyncio.to_thread(own_etcd.start)
        assert await client.get(prefix + "a") is not None
        async with client.watch(prefix) as watch:
            await anext(watch)
            revision = await client.put(prefix + "a", b"2")
            item = await anext(watch)
            assert isinstance(item, PutEvent) and item.entry.mod_revision == revision
