"""Expired files: deleted in time, once, and never under a batch that has not ended."""

from __future__ import annotations

import asyncio

import pytest

from libs.clock import ManualClock
from libs.cluster.client import EtcdClient
from libs.objects import ObjectStore, open_store
from libs.records import keys
from libs.records.batch import FileRecord
from services.router.files import Files
from services.router.identity import Maker
from services.router.records import encode
from services.router.request_bytes import RequestBytes
from services.router.sweeper import Sweeper

NOW = 1_700_000_000


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(wall=float(NOW))


@pytest.fixture
def objects() -> ObjectStore:
    return open_store("memory://")


def sweeper(client: EtcdClient, objects: ObjectStore, clock: ManualClock) -> Sweeper:
    return Sweeper(client, objects, Maker(clock), every_s=600, page=3)


async def add_file(
    client: EtcdClient, objects: ObjectStore, file_id: str, expires_at: int | None
) -> None:
    record = FileRecord(
        id=file_id,
        account="ann",
        bytes=1,
        filename="x",
        purpose="batch",
        created_at=NOW,
        expires_at=expires_at,
    )
    await objects.put(keys.file_object("ann", file_id), b"x")
    await client.put(keys.file("ann", file_id), encode(record))


async def left(client: EtcdClient, objects: ObjectStore) -> tuple[list[str], list[str]]:
    """Names in etcd and in the object store."""
    entries = (await client.list(keys.FILES)).entries
    stored = [each.key for each in await objects.list()]
    return [each.key.rsplit("/")[-1] for each in entries], [each.rsplit("/")[-1] for each in stored]


async def test_a_file_goes_with_its_content_when_its_time_has_come(
    etcd_client: EtcdClient, objects: ObjectStore, clock: ManualClock
) -> None:
    await add_file(etcd_client, objects, "file-soon", NOW + 900)
    await add_file(etcd_client, objects, "file-later", NOW + 5000)
    await add_file(etcd_client, objects, "file-never", None)
    running = asyncio.create_task(sweeper(etcd_client, objects, clock).run())
    both = ["file-later", "file-never"]
    for expected in ([*both, "file-soon"], [*both, "file-soon"], both):
        async with asyncio.timeout(10):
            await clock.wait_for_sleepers(1)
        assert await left(etcd_client, objects) == (expected, expected)
        clock.advance(600)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_a_file_is_kept_while_a_batch_refers_to_it(
    etcd_client: EtcdClient, objects: ObjectStore, clock: ManualClock
) -> None:
    await add_file(etcd_client, objects, "file-1", NOW)
    ref = keys.file_ref("file-1", "batch_1")
    await etcd_client.put(ref, b"")
    sweeping = sweeper(etcd_client, objects, clock)
    assert await sweeping.sweep() == 0
    assert await left(etcd_client, objects) == (["file-1"], ["file-1"])
    await etcd_client.delete(ref)
    assert await sweeping.sweep() == 1
    assert await left(etcd_client, objects) == ([], [])


async def test_of_several_sweepers_one_deletes_each_file(
    etcd_client: EtcdClient, objects: ObjectStore, clock: ManualClock
) -> None:
    for number in range(20):
        await add_file(etcd_client, objects, f"file-{number}", NOW - 1)
    sweepers = [sweeper(etcd_client, objects, clock) for _ in range(3)]
    assert sum(await asyncio.gather(*(each.sweep() for each in sweepers))) == 20
    assert await left(etcd_client, objects) == ([], [])


class TouchesBeforeDelete(EtcdClient):
    """Another's batch is created just before the sweeper's transaction."""

    async def txn(self, *args: object, **kwargs: object) -> object:  # type: ignore[override]
        if (entry := await self.get(keys.file("ann", "file-1"))) is not None:
            await self.put(entry.key, entry.value)
        return await super().txn(*args, **kwargs)  # type: ignore[arg-type]


async def test_a_batch_that_is_created_meanwhile_keeps_its_file(
    etcd_client: EtcdClient, objects: ObjectStore, clock: ManualClock
) -> None:
    await add_file(etcd_client, objects, "file-1", NOW)
    async with TouchesBeforeDelete(etcd_client.transport.addresses) as racing:
        assert await sweeper(racing, objects, clock).sweep() == 0
    assert await left(etcd_client, objects) == (["file-1"], ["file-1"])


async def test_more_than_a_page_is_swept_and_an_unreadable_record_is_passed_over(
    etcd_client: EtcdClient, objects: ObjectStore, clock: ManualClock
) -> None:
    await etcd_client.put(keys.file("ann", "file-"), b"{")
    for number in range(10):
        await add_file(etcd_client, objects, f"file-{number}", NOW if number % 2 else None)
    assert await sweeper(etcd_client, objects, clock).sweep() == 5
    names = [f"file-{number}" for number in range(0, 10, 2)]
    assert await left(etcd_client, objects) == (["file-", *names], names)


async def test_the_files_that_are_shown_are_those_that_have_not_expired(
    etcd_client: EtcdClient, objects: ObjectStore, clock: ManualClock
) -> None:
    await add_file(etcd_client, objects, "file-1", NOW + 10)
    files = Files(etcd_client, objects, Maker(clock), RequestBytes(8 << 20))

    async def shown() -> list[str]:
        page = await files.page("ann", limit=5, after="", newest_first=True, purpose="")
        return [record.id for record in page.records]

    assert await shown() == ["file-1"]
    clock.advance(10)
    assert await shown() == []
