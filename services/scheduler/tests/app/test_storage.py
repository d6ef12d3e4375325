"""What a run does when the object store or etcd is away for a while."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from libs.clock import ManualClock
from libs.cluster.client import EtcdClient
from libs.cluster.ops import Compare
from libs.errors import ImpalaError, Unavailable
from libs.objects import ObjectStore, open_store
from libs.objects.errors import AccessDenied, ReadOnly, StoreFull, StoreUnavailable
from libs.records import keys
from libs.testing.etcd import EtcdProcess
from services.scheduler.app.intake import IntakeSettings
from services.scheduler.app.run_log import FlushPolicy
from services.scheduler.app.storage import RunBroken, RunStorage
from services.scheduler.app.writer import LeadershipLost
from services.scheduler.testing import lines_of
from services.scheduler.tests.app.harness import scheduler_member, world


class Leading:
    epoch = 1
    over = False
    lease_id = 0

    def guard(self) -> Compare:
        return Compare.absent("/nothing")


class AwayStore:
    """An object store that does not answer the first `times` reads."""

    def __init__(self, behind: ObjectStore, times: int) -> None:
        self._behind = behind
        self.left = times

    async def get(self, key: str) -> bytes:
        if self.left:
            self.left -= 1
            raise StoreUnavailable("the store", "it is away")
        return await self._behind.get(key)


async def test_a_store_that_is_away_is_asked_again_after_growing_rests() -> None:
    clock, store = ManualClock(), open_store("memory://")
    await store.put("a/b", b"there")
    away = AwayStore(store, times=3)
    storage = RunStorage(away, Leading(), clock)  # type: ignore[arg-type]
    reading = asyncio.create_task(storage.get("a/b", "It"))
    for rest_s in (0.25, 0.5, 1.0):
        await clock.wait_for_sleepers(1)
        clock.advance(rest_s)
    assert await reading == b"there"


async def test_nobody_waits_for_the_store_once_leadership_is_over() -> None:
    clock, leading = ManualClock(), Leading()
    away = AwayStore(open_store("memory://"), times=1000)
    reading = asyncio.create_task(
        RunStorage(away, leading, clock).get("a/b", "It")  # type: ignore[arg-type]
    )
    await clock.wait_for_sleepers(1)
    leading.over = True
    clock.advance(1.0)
    with pytest.raises(LeadershipLost):
        await reading


async def test_what_is_gone_or_cut_is_final() -> None:
    store = open_store("memory://")
    await store.put("short", b"123")
    storage = RunStorage(store, Leading(), ManualClock())
    with pytest.raises(RunBroken, match="gone/object"):
        await storage.get("gone/object", "It")
    with pytest.raises(RunBroken, match="short"):
        await storage.get_range("short", 1, 10, "It")


def test_segments_grow_with_the_age_of_the_run() -> None:
    policy = FlushPolicy(interval_s=0.5, max_interval_s=60.0)
    assert [policy.interval(age) for age in (0, 100, 1000, 1e6)] == [0.5, 0.5, 5.0, 60.0]


@pytest.mark.parametrize("how", ["killed", "stopped"])
async def test_a_run_goes_on_when_etcd_comes_back(how: str, objects: ObjectStore) -> None:
    wanted = [f"ok-{n}" for n in range(60)]
    with EtcdProcess() as etcd:
        async with (
            EtcdClient([etcd.endpoint]) as client,
            world(client, objects) as w,
            scheduler_member(client, objects),
        ):
            w.router.allow = 20
            submitted = await w.submitter.submit(lines_of(wanted))
            await w.recorded(submitted, 10)
            await asyncio.to_thread(etcd.kill if how == "killed" else etcd.stop)
            w.router.allow = None
            await asyncio.to_thread(etcd.start)
            batch = await w.ended(submitted)
            assert batch.status == "completed"
            assert sorted(await w.custom_ids(batch.output_file_id)) == sorted(wanted)


@pytest.mark.slow
async def test_a_file_of_more_lines_than_an_index_window(
    client: EtcdClient, objects: ObjectStore
) -> None:
    wanted = [f"ok-{n}" for n in range(9000)]
    async with world(client, objects) as w, scheduler_member(client, objects):
        submitted = await w.submitter.submit(lines_of(wanted))
        batch = await w.ended(submitted)
        assert batch.status == "completed"
        assert sorted(await w.custom_ids(batch.output_file_id)) == sorted(wanted)
        assert set(w.router.executed.values()) == {1}


class LosesAnswers:
    """A store whose answers to the first creations are lost, after they took effect."""

    def __init__(self, behind: ObjectStore) -> None:
        self._behind = behind
        self.left = 1

    async def put_if_absent(self, key: str, data: bytes) -> bool:
        created = await self._behind.put_if_absent(key, data)
        if self.left:
            self.left -= 1
            raise StoreUnavailable("the store", "the answer was lost")
        return created

    async def get(self, key: str) -> bytes:
        return await self._behind.get(key)


async def test_what_is_created_is_there_once_whatever_became_of_the_answer() -> None:
    clock, store = ManualClock(), open_store("memory://")
    losing = LosesAnswers(store)
    storage = RunStorage(losing, Leading(), clock)  # type: ignore[arg-type]
    creating = asyncio.create_task(storage.create("a/b", b"mine", "It"))
    await clock.wait_for_sleepers(1)
    clock.advance(0.25)
    assert await creating
    assert not await storage.create("a/b", b"another's", "It")
    assert await store.get("a/b") == b"mine"


async def test_a_segment_that_was_never_named_is_not_written_over(
    client: EtcdClient, objects: ObjectStore
) -> None:
    """A late copy of the request that wrote it would else change a segment that is named."""
    async with world(client, objects) as w:
        w.router.allow = 2
        async with scheduler_member(client, objects, "only"):
            submitted = await w.submitter.submit(lines_of([f"ok-{n}" for n in range(6)]))
            run = await w.recorded(submitted, 2)
            (epoch,) = w.router.epochs
            taken = keys.segment_object(run.id, epoch, len(run.segments) + 1)
            await objects.put(taken, b"never named")
            w.router.allow = None
            batch = await w.ended(submitted)
        assert batch.status == "completed"
        assert await objects.get(taken) == b"never named"
        assert taken not in [ref.object for ref in (await w.run(submitted)).segments]
        assert len(await w.custom_ids(batch.output_file_id)) == 6


class Refuses:
    """A store that refuses the first writes of an index."""

    def __init__(self, behind: ObjectStore, error: ImpalaError, times: int) -> None:
        self._behind = behind
        self._error = error
        self.left = times

    def __getattr__(self, name: str) -> Any:
        return getattr(self._behind, name)

    async def put(self, key: str, data: bytes) -> None:
        if self.left:
            self.left -= 1
            raise self._error
        await self._behind.put(key, data)


@pytest.mark.parametrize(
    "error",
    [
        ReadOnly("/objects", "it is frozen"),
        StoreFull("/objects"),
        AccessDenied("s3://bucket"),
        StoreUnavailable("s3://bucket", "it is away"),
        Unavailable("etcd is away", "CLUSTER_UNAVAILABLE"),
    ],
)
async def test_a_new_batch_waits_for_the_store_however_often_it_was_asked(
    client: EtcdClient, objects: ObjectStore, error: ImpalaError
) -> None:
    async with world(client, objects) as w:
        intake = IntakeSettings(max_attempts=2, retry_s=0.005, max_retry_s=0.01)
        refusing: Any = Refuses(objects, error, times=6)
        w.router.objects = refusing
        async with scheduler_member(client, objects, intake=intake):
            submitted = await w.submitter.submit(lines_of(["ok-1"]))
            assert (await w.ended(submitted)).status == "completed"
        assert refusing.left == 0
