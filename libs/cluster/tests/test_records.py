"""Records are changed by compare-and-set, and a lost answer is no lost update."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from libs.cluster.attempt import Applied, Refused, write_once
from libs.cluster.client import EtcdClient
from libs.cluster.election import Election
from libs.cluster.errors import (
    GuardFailed,
    OutcomeUnknown,
    RecordExists,
    RecordMissing,
    RecordUnreadable,
)
from libs.cluster.ops import Compare, Op, Put, TxnResult
from libs.cluster.record import JSON_CODEC, Json, RecordCodec
from libs.cluster.records import RecordStore


@pytest.fixture
def store(client: EtcdClient, prefix: str) -> RecordStore[Json]:
    return RecordStore(client, prefix, JSON_CODEC)


class LosesAnswers(EtcdClient):
    """A real client whose transactions are applied and then, so many times, not answered."""

    losses = 0
    after_loss: list[Put]

    async def txn(
        self, compares: Sequence[Compare], then: Sequence[Op], else_: Sequence[Op] = ()
    ) -> TxnResult:
        result = await super().txn(compares, then, else_)
        if self.losses > 0:
            self.losses -= 1
            for put in self.after_loss:
                await self.put(put.key, put.value)
            raise OutcomeUnknown("the answer was lost")
        return result


@pytest.fixture
def lossy(client: EtcdClient) -> LosesAnswers:
    lossy = LosesAnswers(client.transport.addresses)
    lossy.after_loss = []
    return lossy


def increment(value: Json) -> Json:
    return {"n": value["n"] + 1}


async def test_a_record_is_created_once_read_and_deleted(store: RecordStore[Json]) -> None:
    created = await store.create("a", {"n": 1})
    assert await store.get("a") == created
    with pytest.raises(RecordExists):
        await store.create("a", {"n": 2})
    assert await store.delete("a")
    assert not await store.delete("a")
    assert await store.get("a") is None
    with pytest.raises(RecordMissing):
        await store.update("a", increment)


async def test_concurrent_updates_lose_nothing(store: RecordStore[Json]) -> None:
    await store.create("a", {"n": 0})
    await asyncio.gather(*(store.update("a", increment) for _ in range(10)))
    record = await store.get("a")
    assert record is not None and record.value == {"n": 10}


async def test_an_update_that_decides_for_nothing_writes_nothing(store: RecordStore[Json]) -> None:
    created = await store.create("a", {"n": 0})
    assert await store.update("a", lambda value: None) == created


async def test_only_the_leader_writes_under_a_guard(
    client: EtcdClient, store: RecordStore[Json], name: str
) -> None:
    leadership = await Election(client, name, "one", ttl_s=2).campaign()
    guard = leadership.guard()
    await store.create("a", {"n": 0}, guard)
    await store.update("a", increment, guard)
    await leadership.resign()
    with pytest.raises(GuardFailed):
        await store.update("a", increment, guard)
    with pytest.raises(GuardFailed):
        await store.create("b", {"n": 0}, guard)
    with pytest.raises(GuardFailed):
        await store.delete("a", guard)
    record = await store.get("a")
    assert record is not None and record.value == {"n": 1}


async def test_lists_go_by_id_or_by_age_in_pages(store: RecordStore[Json]) -> None:
    for each in ("x/2", "x/3", "x/1", "y/1"):
        await store.create(each, {"n": 0})
    await store.update("x/2", increment)
    assert [r.id for r in await store.list()] == ["x/1", "x/2", "x/3", "y/1"]
    assert [r.id for r in await store.list(under="x/", after="x/1", limit=1)] == ["x/2"]
    page = await store.list_newest(under="x/", limit=2)
    assert [r.id for r in page.records] == ["x/1", "x/3"] and page.more
    page = await store.list_newest(under="x/", limit=2, after="x/3")
    assert [r.id for r in page.records] == ["x/2"] and not page.more
    with pytest.raises(RecordMissing):
        await store.list_newest(limit=2, after="x/9")


async def test_a_view_follows_the_records(store: RecordStore[Json]) -> None:
    await store.create("a", {"n": 0})
    async with store.view() as view:
        seen = view.version
        await store.update("a", increment)
        seen = await view.changed(seen)
        record = view.get("a")
        assert record is not None and record.value == {"n": 1}
        await store.delete("a")
        await view.changed(seen)
        assert dict(view.all()) == {}


async def test_a_newer_schema_and_foreign_bytes_are_named_not_guessed(
    client: EtcdClient, prefix: str
) -> None:
    newer = RecordStore(client, prefix, RecordCodec(encode=dict, decode=lambda r, v: r, version=2))
    await newer.create("a", {"n": 0})
    older: RecordStore[Json] = RecordStore(client, prefix, JSON_CODEC)
    with pytest.raises(RecordUnreadable, match="newer"):
        await older.get("a")
    await client.put(prefix + "b", b"\xff")
    with pytest.raises(RecordUnreadable, match=f"{prefix}b"):
        await older.get("b")
    async with older.view() as view:
        assert dict(view.all()) == {}


async def test_a_lost_answer_neither_repeats_nor_loses_the_update(
    lossy: LosesAnswers, store: RecordStore[Json], prefix: str
) -> None:
    async with lossy:
        unsure: RecordStore[Json] = RecordStore(lossy, prefix, JSON_CODEC)
        lossy.losses = 1
        created = await unsure.create("a", {"n": 0})
        lossy.losses = 2
        updated = await unsure.update("a", increment)
    assert updated.value == {"n": 1} and updated.create_revision == created.mod_revision
    assert await store.get("a") == updated


async def test_what_is_written_along_with_a_record_shares_its_fate(
    lossy: LosesAnswers, store: RecordStore[Json], prefix: str
) -> None:
    side = prefix.rstrip("/") + "-side"
    async with lossy:
        unsure: RecordStore[Json] = RecordStore(lossy, prefix, JSON_CODEC)
        lossy.losses = 1
        await unsure.create("a", {"n": 0}, also=[Put(side, b"1")])
        # Someone moves on before we learn what became of our write: it must not come again.
        lossy.losses, lossy.after_loss = 1, [Put(side, b"newer")]
        await unsure.update("a", increment, also=[Put(side, b"2")])
        with pytest.raises(RecordExists):
            await unsure.create("a", {"n": 0}, also=[Put(side, b"3")])
        entry = await lossy.get(side)
    assert entry is not None and entry.value == b"newer"
    record = await store.get("a")
    assert record is not None and record.value == {"n": 1}


async def test_a_lost_answer_is_found_in_history_when_others_wrote_since(
    lossy: LosesAnswers, prefix: str
) -> None:
    key = prefix + "a"
    async with lossy:
        first = await lossy.put(key, b"old")
        lossy.losses = 1
        lossy.after_loss = [Put(key, b"theirs 1"), Put(key, b"theirs 2")]
        outcome = await write_once(
            lossy, Put(key, b"ours"), lambda e: e.value == b"ours", expected=first, guard=None
        )
    assert outcome == Applied(first + 1)


async def test_when_another_writer_was_first_the_newer_entry_is_told(
    client: EtcdClient, prefix: str
) -> None:
    key = prefix + "a"
    first = await client.put(key, b"old")
    await client.put(key, b"theirs")
    outcome = await write_once(
        client, Put(key, b"ours"), lambda e: e.value == b"ours", expected=first, guard=None
    )
    assert isinstance(outcome, Refused)
    assert outcome.found is not None and outcome.found.value == b"theirs"


async def test_an_outcome_that_stays_in_doubt_is_not_guessed(
    lossy: LosesAnswers, prefix: str
) -> None:
    async with lossy:
        lossy.losses = 99
        with pytest.raises(OutcomeUnknown):
            await RecordStore(lossy, prefix, JSON_CODEC).create("a", {"n": 0})
