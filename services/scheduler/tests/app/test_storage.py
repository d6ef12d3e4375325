"""What a run does when the object store or etcd is away for a while."""

from __future__ import annotations

import asyncio

import pytest

from libs.clock import ManualClock
from libs.cluster.client import EtcdClient
from libs.cluster.ops import Compare
from libs.objects import ObjectStore, open_store
from libs.objects.errors import StoreUnavailable
from libs.testing.etcd import EtcdProcess
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
