"""Objects without a name are deleted after their time of grace; a named one never, whoever else
writes at the same moment. On a folder and on S3."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import msgspec
import pytest
import pytest_asyncio

from libs.clock import ManualClock
from libs.cluster.client import EtcdClient
from libs.cluster.errors import RecordUnreadable
from libs.cluster.keys import election_leader
from libs.objects import ObjectStore, open_store
from libs.objects.staging import STAGING
from libs.records import keys
from libs.records.batch import BatchRecord, FileRecord, LedgerRecord, RunRecord, SegmentRef
from libs.testing.s3 import KEYS, S3Process
from services.router.garbage import Garbage
from services.router.identity import Maker

NOW = 1_700_000_000
GRACE_S = 3600.0
KEEP_S = 86_400.0
FLEET = "tiny.float32"


@pytest.fixture(scope="module")
def s3() -> Iterator[S3Process]:
    with S3Process() as server:
        yield server


@pytest.fixture(params=["folder", "s3"])
def objects(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    if request.param == "folder":
        return open_store(str(tmp_path / "objects"))
    s3: S3Process = request.getfixturevalue("s3")
    return open_store(f"s3://bucket/{tmp_path.name}", KEYS | {"endpoint": s3.endpoint})


class World:
    """What a cluster would write, and a collector whose time is moved by hand."""

    def __init__(self, client: EtcdClient, objects: ObjectStore) -> None:
        self.client = client
        self.objects = objects
        self.clock = ManualClock(wall=float(NOW))
        self.garbage = self.collector()

    def collector(self, client: EtcdClient | None = None, page: int = 3) -> Garbage:
        return Garbage(
            client or self.client,
            self.objects,
            Maker(self.clock),
            every_s=600,
            grace_s=GRACE_S,
            keep_results_s=KEEP_S,
            page=page,
        )

    async def sweep_twice(self) -> int:
        """With the time of grace in between."""
        assert await self.garbage.sweep() == 0
        self.clock.advance(GRACE_S)
        return await self.garbage.sweep()

    async def keys(self) -> list[str]:
        found = [info.key for info in await self.objects.list()]
        return [key for key in found if key != keys.STORE_MARK_OBJECT]

    async def file(self, file_id: str) -> str:
        record = FileRecord(
            id=file_id, account="ann", bytes=1, filename="x", purpose="batch", created_at=NOW
        )
        await self.client.put(keys.file("ann", file_id), msgspec.json.encode(record))
        return await self.content(file_id)

    async def content(self, file_id: str) -> str:
        key = keys.file_object("ann", file_id)
        await self.objects.put(key, b"x")
        return key

    async def index(self, run_id: str = "run-1") -> str:
        key = keys.index_object(run_id)
        await self.objects.put(key, b"x")
        return key

    async def segment(self, epoch: int, number: int, run_id: str = "run-1") -> str:
        key = keys.segment_object(run_id, epoch, number)
        await self.objects.put(key, b"x")
        return key

    async def run(self, *segments: str, ended_at: int | None = None, output: str = "") -> None:
        record = RunRecord(
            id="run-1",
            batch_id="batch_1",
            account="ann",
            job_id="job-1",
            fleet=FLEET,
            model="tiny",
            endpoint="/v1/chat/completions",
            input_object="files/ann/file-in",
            index_object=keys.index_object("run-1"),
            total=1,
            segments=[SegmentRef(object=key, lines=1, bytes=1) for key in segments],
            output_file_id=output,
            ledger=LedgerRecord(),
            created_at=NOW,
            started_at=float(NOW),
            ended_at=ended_at,
        )
        await self.client.put(keys.run(record.id), msgspec.json.encode(record))

    async def batch(self, status: str) -> None:
        record = BatchRecord(
            id="batch_1",
            account="ann",
            endpoint="/v1/chat/completions",
            input_file_id="file-in",
            completion_window="24h",
            created_at=NOW,
            expires_at=None,
            status=status,
            run_id="run-1",
        )
        await self.client.put(keys.batch("ann", record.id), msgspec.json.encode(record))

    async def leader(self) -> int:
        """Its epoch."""
        key = election_leader(keys.fleet_election(FLEET))
        await self.client.delete(key)
        await self.client.put(key, b"sched-1")
        entry = await self.client.get(key)
        assert entry is not None
        return entry.create_revision


@pytest_asyncio.fixture
async def world(etcd_client: EtcdClient, objects: ObjectStore) -> AsyncIterator[World]:
    yield World(etcd_client, objects)


async def test_content_without_a_record_goes_after_its_grace_and_no_other(world: World) -> None:
    named = [await world.file(f"file-{n}") for n in (0, 2, 4, 6)]
    for n in (1, 3, 5):
        await world.content(f"file-{n}")
    await world.objects.put("strangers/thing", b"")
    assert await world.garbage.sweep() == 0
    world.clock.advance(GRACE_S - 1)
    assert await world.garbage.sweep() == 0
    world.clock.advance(1)
    assert await world.garbage.sweep() == 3
    assert await world.keys() == [*named, "strangers/thing"]


async def test_what_gets_its_name_within_the_grace_stays(world: World) -> None:
    key = await world.content("file-1")
    assert await world.garbage.sweep() == 0
    world.clock.advance(GRACE_S)
    await world.file("file-1")
    assert await world.garbage.sweep() == 0
    assert await world.keys() == [key]


async def test_an_object_that_is_written_anew_has_its_grace_anew(world: World) -> None:
    key = await world.content("file-1")
    assert await world.garbage.sweep() == 0
    world.clock.advance(GRACE_S)
    before = (await world.objects.head(key)).modified
    while (await world.objects.head(key)).modified == before:  # times of S3 are seconds
        await world.content("file-1")
    assert await world.garbage.sweep() == 0
    world.clock.advance(GRACE_S)
    assert await world.garbage.sweep() == 1


async def test_files_that_a_run_will_have_stay_until_it_has_ended(world: World) -> None:
    await world.run(output="file-out")
    key = await world.content("file-out")
    assert await world.sweep_twice() == 0
    await world.run(output="file-out", ended_at=NOW)  # and the file was deleted by its owner
    assert await world.garbage.sweep() == 1
    assert key not in await world.keys()


async def test_of_a_run_that_goes_on_only_fenced_leaders_segments_go(world: World) -> None:
    old, new = await world.leader(), await world.leader()
    named = [await world.segment(old, 1), await world.segment(new, 1)]
    fenced = await world.segment(old, 2)
    about_to_be = await world.segment(new, 2)
    index = await world.index()
    await world.run(*named)
    assert await world.sweep_twice() == 1
    assert set(await world.keys()) == {*named, about_to_be, index}
    assert fenced not in await world.keys()


async def test_a_leader_s_unnamed_segment_goes_once_its_run_has_ended(world: World) -> None:
    epoch = await world.leader()
    named, unnamed = await world.segment(epoch, 1), await world.segment(epoch, 2)
    index = await world.index()
    await world.run(named, ended_at=NOW)
    assert await world.sweep_twice() == 2
    kept = await world.keys()
    assert kept == [named] and not {unnamed, index} & set(kept)


@pytest.mark.parametrize(("status", "kept"), [("validating", True), ("failed", False)])
async def test_the_index_of_a_batch_that_is_validated_stays(
    world: World, status: str, kept: bool
) -> None:
    """It waits for a server of its model, perhaps for days."""
    await world.batch(status)
    await world.index()
    assert await world.sweep_twice() == (0 if kept else 1)


async def test_results_are_kept_for_a_while_and_then_replaced_by_the_files(world: World) -> None:
    epoch = await world.leader()
    named = [await world.segment(epoch, n) for n in (1, 2, 3, 4)]
    await world.run(*named, ended_at=NOW + int(GRACE_S), output="file-out")
    output = await world.file("file-out")
    assert await world.sweep_twice() == 0
    world.clock.advance(KEEP_S)
    assert await world.garbage.sweep() == 0, "they have lost their name now"
    entry = await world.client.get(keys.run("run-1"))
    assert entry is not None
    run = msgspec.json.decode(entry.value, type=RunRecord)
    assert (run.segments, run.released, run.output_file_id) == ([], True, "file-out")
    world.clock.advance(GRACE_S)
    assert await world.garbage.sweep() == 4
    assert await world.keys() == [output]


async def test_several_collectors_delete_the_same_and_no_more(world: World) -> None:
    others = [world.garbage, world.collector(page=2), world.collector(page=100)]
    named = [await world.file(f"file-{n}") for n in range(3)]
    for n in range(3, 8):
        await world.content(f"file-{n}")
    for _ in range(2):
        for each in others:
            await each.sweep()
        world.clock.advance(GRACE_S)
    assert await world.keys() == named


class NamesBeforeDelete(EtcdClient):
    """A writer names its object while the collector makes its last check."""

    async def list(self, prefix: str, *args: object, **kwargs: object) -> object:  # type: ignore[override]
        listing = await super().list(prefix, *args, **kwargs)  # type: ignore[arg-type]
        if prefix == keys.RUNS and self.name_now:
            await self.put(keys.file("ann", "file-1"), b"{}")
        return listing

    name_now = False


async def test_a_name_that_comes_during_the_last_check_is_seen(world: World) -> None:
    key = await world.content("file-1")
    async with NamesBeforeDelete(world.client.transport.addresses) as naming:
        collector = world.collector(naming)
        assert await collector.sweep() == 0
        world.clock.advance(GRACE_S)
        naming.name_now = True
        assert await collector.sweep() == 0
    assert await world.keys() == [key]


async def test_nothing_is_deleted_while_a_record_cannot_be_read(world: World) -> None:
    """What it names is not known. The next sweep goes on where somebody has mended it."""
    kept = await world.content("file-of-a-run")
    await world.client.put(keys.run("run-1"), b"{")
    assert await world.garbage.sweep() == 0
    world.clock.advance(GRACE_S)
    with pytest.raises(RecordUnreadable, match="run-1 cannot be read"):
        await world.garbage.sweep()
    assert kept in await world.keys()
    await world.run(output="file-of-a-run")
    assert await world.garbage.sweep() == 0
    assert kept in await world.keys()


async def test_nothing_is_deleted_for_an_etcd_that_lost_its_data(world: World) -> None:
    key = await world.file("file-1")
    assert await world.garbage.sweep() == 0
    for entry in (await world.client.list(keys.ROOT)).entries:
        await world.client.delete(entry.key)
    assert await world.sweep_twice() == 0
    assert await world.keys() == [key]
    # Whoever wants it so takes the mark away.
    await world.objects.delete(keys.STORE_MARK_OBJECT)
    assert await world.sweep_twice() == 1


async def test_nothing_is_deleted_from_another_cluster_s_store(world: World) -> None:
    await world.objects.put(keys.STORE_MARK_OBJECT, b"another")
    await world.client.put(keys.STORE_MARK, b"mine")
    await world.content("file-1")
    assert await world.sweep_twice() == 0


HALF = """
import asyncio, sys
from libs.objects import open_store

async def main():
    writer = await open_store(sys.argv[1]).put_stream("files/ann/file-half")
    await writer.write(b"x" * (12 << 20))
    print("written", flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


async def test_what_a_killed_writer_had_not_finished_goes(
    etcd_client: EtcdClient, tmp_path: Path
) -> None:
    folder = tmp_path / "objects"
    world = World(etcd_client, open_store(str(folder)))
    writer = await asyncio.create_subprocess_exec(
        sys.executable, "-c", HALF, str(folder), stdout=subprocess.PIPE
    )
    assert writer.stdout is not None and await writer.stdout.readline() == b"written\n"
    await world.garbage.sweep()
    assert len(list((folder / STAGING).iterdir())) == 1, "its writer lives"
    writer.kill()
    await writer.wait()
    await world.garbage.sweep()
    assert list((folder / STAGING).iterdir()) == []
