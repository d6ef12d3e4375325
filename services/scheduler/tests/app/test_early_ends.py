"""Batches that expire or are cancelled before anything of them ran, or while they end."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from itertools import pairwise
from typing import Any

import msgspec
import pytest

from impala.router.v1 import router_pb2
from libs.clock import SystemClock
from libs.cluster.client import EtcdClient
from libs.cluster.watch import PutEvent, Snapshot
from libs.objects import ObjectStore, ObjectWriter
from libs.records import keys
from libs.records.batch import TERMINAL, BatchRecord, RunRecord, may_follow
from services.scheduler.app.intake import IntakeSettings
from services.scheduler.testing import (
    ACCOUNT,
    JOB,
    FakeModelServer,
    FakeRouter,
    Submitted,
    Submitter,
    lines_of,
    model_server_member,
    router_member,
)
from services.scheduler.tests.app.harness import (
    World,
    eventually,
    scheduler_member,
    world,
)

LINES = [f"ok-{n}" for n in range(6)]
PAST = 1_700_000_000


async def assert_all_expired(w: World, submitted: Submitted) -> None:
    batch, run = await w.ended(submitted), await w.run(submitted)
    assert (batch.status, batch.output_file_id) == ("expired", None)
    assert (run.total, run.completed, run.failed, run.unanswered) == (6, 0, 6, 6)
    errors = await w.lines(batch.error_file_id)
    assert sorted(str(error["custom_id"]) for error in errors) == LINES
    assert {error["error"]["code"] for error in errors} == {"batch_expired"}
    assert not w.router.executed


async def test_of_a_batch_that_expired_before_its_start_every_line_is_named(
    client: EtcdClient, objects: ObjectStore
) -> None:
    async with world(client, objects) as w, scheduler_member(client, objects):
        submitted = await w.submitter.submit(lines_of(LINES), expires_at=PAST)
        await assert_all_expired(w, submitted)


@pytest.mark.parametrize("expires_in_s", [-1e8, 1.0])
async def test_so_it_is_of_one_whose_model_nobody_serves(
    client: EtcdClient, objects: ObjectStore, expires_in_s: float
) -> None:
    router, submitter = FakeRouter(objects), Submitter(client, objects)
    await submitter.job(msgspec.structs.replace(JOB, fleet=""))
    expires_at = int(SystemClock().time() + expires_in_s)
    async with router_member(client, router), scheduler_member(client, objects):
        submitted = await submitter.submit(lines_of(LINES), expires_at=expires_at)
        w = World(client, objects, router, FakeModelServer(), submitter)
        await assert_all_expired(w, submitted)


class Stuck(FakeRouter):
    """Never indexes a file."""

    async def Index(
        self, request: router_pb2.IndexRequest, context: Any
    ) -> AsyncIterator[router_pb2.IndexProgress]:
        await asyncio.Event().wait()
        yield router_pb2.IndexProgress()  # makes it an async generator


async def test_one_that_nobody_can_validate_expires_without_lines(
    client: EtcdClient, objects: ObjectStore
) -> None:
    router, server, submitter = Stuck(objects), FakeModelServer(), Submitter(client, objects)
    await submitter.job()
    intake = IntakeSettings(overdue_s=0.2)
    async with (
        router_member(client, router),
        model_server_member(client, server),
        scheduler_member(client, objects, intake=intake),
    ):
        submitted = await submitter.submit(lines_of(LINES), expires_at=PAST)
        batch = await World(client, objects, router, server, submitter).ended(submitted)
    assert (batch.status, batch.output_file_id, batch.error_file_id) == ("expired", None, None)
    assert await client.get(keys.run(submitted.run_id)) is None


class SlowStore:
    """An object store that holds up the writing of a batch's files, and tells when it does."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self.waits, self.go_on = asyncio.Event(), asyncio.Event()

    async def put_stream(self, key: str) -> ObjectWriter:
        self.waits.set()
        await self.go_on.wait()
        return await self._store.put_stream(key)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


async def test_a_cancel_while_the_files_are_written_ends_it_as_cancelled_with_all_lines(
    client: EtcdClient, objects: ObjectStore
) -> None:
    slow: Any = SlowStore(objects)
    async with world(client, objects) as w, scheduler_member(client, slow) as running:
        submitted = await w.submitter.submit(lines_of(LINES))
        await slow.waits.wait()
        await w.submitter.cancel(submitted)
        cancels = running.scheduler.views.cancels
        await eventually(lambda: cancels.get(submitted.batch_id) is not None)
        slow.go_on.set()
        batch, run = await w.ended(submitted), await w.run(submitted)
    assert (batch.status, run.outcome) == ("cancelled", "cancelled")
    assert batch.cancelling_at and batch.cancelled_at and not batch.completed_at
    assert (run.completed, run.failed, run.unanswered) == (6, 0, 0)
    assert sorted(await w.custom_ids(batch.output_file_id)) == LINES
    assert batch.error_file_id is None


class Watcher:
    """Sees every state of a batch and its run that etcd ever held."""

    def __init__(self, client: EtcdClient, submitted: Submitted) -> None:
        self._client = client
        self._batch_key = keys.batch(ACCOUNT, submitted.batch_id)
        self._run_key = keys.run(submitted.run_id)
        self.statuses: list[str] = []
        self.runs: list[RunRecord] = []

    async def until_the_end(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._follow(self._batch_key, self._batch))
            group.create_task(self._follow(self._run_key, self._run))

    async def _follow(self, key: str, take: Any) -> None:
        async with self._client.watch(key) as watch:
            async for item in watch:
                entries = item.entries if isinstance(item, Snapshot) else ()
                if isinstance(item, PutEvent):
                    entries = (item.entry,)
                for entry in entries:
                    if entry.key == key and take(entry.value):
                        return

    def _batch(self, value: bytes) -> bool:
        status = msgspec.json.decode(value, type=BatchRecord).status
        if not self.statuses or self.statuses[-1] != status:
            self.statuses.append(status)
        return status in TERMINAL

    def _run(self, value: bytes) -> bool:
        self.runs.append(msgspec.json.decode(value, type=RunRecord))
        return self.runs[-1].ended_at is not None

    def check(self) -> None:
        """Legal moves only, and counts that never fall, never exceed the total, and sum to it."""
        for before, after in pairwise(self.statuses):
            assert may_follow(before, after), self.statuses
        counts = [(run.completed, run.failed) for run in self.runs]
        for (completed, failed), (next_completed, next_failed) in pairwise(counts):
            assert next_completed >= completed and next_failed >= failed, counts
        assert all(sum(each) <= 25 for each in counts)
        assert {run.total for run in self.runs} == {25} and sum(counts[-1]) == 25


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_a_hundred_cancels_at_any_moment_keep_what_is_finished_and_double_nothing(
    client: EtcdClient, objects: ObjectStore
) -> None:
    """5 quick lines, 20 that end at some time, and a cancel before, while or after they do."""
    rng, clock = random.Random(26), SystemClock()
    lines = [f"ok-{n}" for n in range(25)]
    ends: set[str] = set()
    async with world(client, objects) as w, scheduler_member(client, objects):
        for _ in range(100):
            w.router.allow = 5
            submitted = await w.submitter.submit(lines_of(lines))
            await w.run_begun(submitted)
            watcher = Watcher(client, submitted)
            watching = asyncio.create_task(watcher.until_the_end())
            await clock.sleep(rng.uniform(0, 0.05))
            w.router.allow = rng.choice((0, 8, 20, None))
            await clock.sleep(rng.uniform(0, 0.15))
            await w.submitter.cancel(submitted)
            w.router.allow = None if rng.random() < 0.5 else w.router.allow
            batch = await w.ended(submitted)
            await watching
            watcher.check()
            run = await w.run(submitted)
            outputs = await w.custom_ids(batch.output_file_id)
            errors = await w.lines(batch.error_file_id)
            assert sorted([*outputs, *(str(each["custom_id"]) for each in errors)]) == sorted(lines)
            assert (len(outputs), len(errors)) == (run.completed, run.failed)
            assert len(outputs) >= max(each.completed for each in watcher.runs)
            assert {each["error"]["code"] for each in errors} <= {"batch_cancelled"}
            assert batch.status == ("completed" if batch.completed_at else "cancelled")
            ends.add(batch.status)
            w.router.allow = None
    assert ends == {"completed", "cancelled"}
