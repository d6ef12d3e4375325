"""Leaders that die, pause or hand over in the middle of a run."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from libs.clock import SystemClock
from libs.cluster.client import EtcdClient
from libs.cluster.election import Election
from libs.cluster.members import Members
from libs.cluster.ops import Compare
from libs.objects import ObjectStore
from libs.records import keys
from libs.records.batch import RunRecord
from libs.testing.etcd import EtcdProcess
from services.scheduler.app.run_log import FlushPolicy, RunLog
from services.scheduler.app.storage import RunStorage
from services.scheduler.app.writer import GuardedWriter, LeadershipLost
from services.scheduler.core.ledger import RunUse
from services.scheduler.core.run import RunLimits
from services.scheduler.testing import FLEET, Submitted, lines_of
from services.scheduler.tests.app.harness import (
    DEADLINE_S,
    FAST,
    World,
    eventually,
    scheduler_member,
    tokens,
    until,
    world,
)

LINES = [f"ok-{n}" for n in range(40)] + [f"bad-{n}" for n in range(3)]


@asynccontextmanager
async def scheduler_process(
    etcd: EtcdProcess, objects: Path, member_id: str
) -> AsyncIterator[asyncio.subprocess.Process]:
    """The program itself; killed at the end if it still runs."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "services.scheduler.main"),
        *("--etcd", etcd.endpoint, "--objects", str(objects), "--port", "0"),
        *("--member", member_id, "--election-ttl-s", "1", "--flush-s", "0.02"),
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def assert_every_line_once(w: World, submitted: Submitted) -> None:
    batch = await w.ended(submitted)
    run = await w.run(submitted)
    assert batch.status == "completed"
    assert (run.completed, run.failed, run.total) == (40, 3, 43)
    assert sorted(await w.custom_ids(batch.output_file_id)) == sorted(LINES[:40])
    assert sorted(await w.custom_ids(batch.error_file_id)) == sorted(LINES[40:])
    assert run.ledger.tasks == 40
    assert tokens(run.ledger) == await w.usage(batch.output_file_id)
    assert run.ledger.prompt_tokens > 0


async def test_a_killed_leader_is_followed_and_every_line_ends_exactly_once(
    etcd: EtcdProcess, client: EtcdClient, objects: ObjectStore, tmp_path: Path
) -> None:
    async with world(client, objects) as w:
        gate = HalfGate(w)
        async with scheduler_process(etcd, tmp_path / "objects", "first") as first:
            submitted = await w.submitter.submit(lines_of(LINES))
            await w.recorded(submitted, 10)
            os.kill(first.pid, signal.SIGKILL)
            await first.wait()
        gate.open()
        async with scheduler_member(client, objects, "second"):
            await assert_every_line_once(w, submitted)
        assert len(w.router.epochs) == 2
        # What was recorded by the first was not run again.
        assert sum(times == 1 for times in w.router.executed.values()) >= 10


class HalfGate:
    """Lets some lines through, then holds the rest back until it is opened."""

    def __init__(self, w: World) -> None:
        self._router = w.router
        self._router.allow = 12

    def open(self) -> None:
        self._router.allow = None


async def test_a_leader_that_stops_hands_over_at_once(
    client: EtcdClient, objects: ObjectStore
) -> None:
    async with world(client, objects) as w:
        gate = HalfGate(w)
        async with scheduler_member(client, objects, "first"):
            submitted = await w.submitter.submit(lines_of(LINES))
            await w.recorded(submitted, 5)
        gate.open()
        async with scheduler_member(client, objects, "second"):
            await assert_every_line_once(w, submitted)


async def test_a_leader_that_is_removed_stops_and_its_rival_ends_the_run(
    client: EtcdClient, objects: ObjectStore
) -> None:
    async with world(client, objects) as w, scheduler_member(client, objects, "first") as first:
        gate = HalfGate(w)
        submitted = await w.submitter.submit(lines_of(LINES))
        await w.recorded(submitted, 5)
        async with scheduler_member(client, objects, "second") as second:
            for name in (keys.fleet_election(FLEET), keys.ELECTION_INTAKE):
                await client.delete(f"{keys.ELECTIONS}{name}/leader")
            await eventually(lambda: bool(second.scheduler.leaders()))
            # Each sees it for itself, in either order; until then the guard refuses its writes.
            await eventually(lambda: not first.scheduler.leaders())
            gate.open()
            await assert_every_line_once(w, submitted)


async def test_finalizing_that_was_cut_short_is_repeated(
    client: EtcdClient, objects: ObjectStore
) -> None:
    """The outcome and the file ids are fixed, a half-written file may lie there: same files."""
    async with world(client, objects) as w:
        gate = HalfGate(w)
        async with scheduler_member(client, objects, "first"):
            submitted = await w.submitter.submit(lines_of(LINES))
            await w.recorded(submitted, 5)
        run, batch = await w.run(submitted), await w.batch(submitted)
        stopped = msgspec.structs.replace(
            run, outcome="cancelled", output_file_id="file-out", error_file_id="file-err"
        )
        await client.put(keys.run(run.id), msgspec.json.encode(stopped))
        finalizing = msgspec.structs.replace(batch, status="finalizing", finalizing_at=5)
        await client.put(keys.batch(batch.account, batch.id), msgspec.json.encode(finalizing))
        await objects.put(keys.file_object(batch.account, "file-out"), b"half a li")
        gate.open()
        async with scheduler_member(client, objects, "second"):
            ended = await w.ended(submitted)
        assert (ended.status, ended.output_file_id, ended.error_file_id) == (
            "cancelled",
            "file-out",
            "file-err",
        )
        outputs = await w.custom_ids("file-out")
        errors = await w.custom_ids("file-err")
        assert sorted(outputs + errors) == sorted(LINES)
        assert len(outputs) == run.completed


async def test_a_leader_whose_time_is_over_can_name_no_segment(
    client: EtcdClient, objects: ObjectStore
) -> None:
    clock = SystemClock()
    async with world(client, objects) as w:
        gate = HalfGate(w)
        async with scheduler_member(client, objects, "first"):
            submitted = await w.submitter.submit(lines_of(LINES))
            await w.recorded(submitted, 5)
        election = Election(client, keys.fleet_election(FLEET), "stale", ttl_s=5)
        async with await election.campaign() as stale:
            belief = Believer(stale.epoch, stale.guard())
            writer = GuardedWriter(client, belief, clock)
            log = await RunLog.open(
                submitted.run_id, writer, RunStorage(objects, belief, clock), FlushPolicy()
            )
            assert log is not None
            await stale.resign()
            before = await w.run(submitted)
            log.add(1, "output", b'{"custom_id":"from the past"}', 0.0)
            with pytest.raises(LeadershipLost):
                await log.flush(RunUse(), {})
            assert await w.run(submitted) == before
        gate.open()
        async with scheduler_member(client, objects, "second"):
            await assert_every_line_once(w, submitted)


class Believer:
    """A leader that was paused and has not heard yet that it leads no more."""

    over = False
    lease_id = 0

    def __init__(self, epoch: int, guard: Compare) -> None:
        self.epoch = epoch
        self._guard = guard

    def guard(self) -> Compare:
        return self._guard


async def test_the_process_registers_leads_and_leaves(
    etcd: EtcdProcess, client: EtcdClient, objects: ObjectStore, tmp_path: Path
) -> None:
    async with world(client, objects), Members(client, "scheduler") as members:
        async with scheduler_process(etcd, tmp_path / "objects", "alone") as process:
            await members.wait_for(1, timeout_s=DEADLINE_S)
            election = Election(client, keys.fleet_election(FLEET), "observer")
            async with asyncio.timeout(DEADLINE_S):
                async for leader in election.observe():
                    if leader is not None and leader.candidate_id == "alone":
                        break
            process.send_signal(signal.SIGTERM)
            assert await process.wait() == 0
        await members.wait_until(lambda: not members.current())
        assert await election.leader() is None


async def test_losses_of_a_line_are_not_forgotten_when_the_leader_changes(
    client: EtcdClient, objects: ObjectStore
) -> None:
    """Every leader sees the line kill its server once, and is then followed by another."""
    limits = RunLimits(max_losses=4, backoff_s=0.05)
    settings = replace(FAST, limits=limits)
    async with world(client, objects) as w:
        submitted = await w.submitter.submit(lines_of(["hang-1", "lost-1", "hang-2"]))
        for losses in range(1, 4):
            w.router.allow = 3
            async with scheduler_member(client, objects, f"s{losses}", settings):
                run = await lost_so_often(w, submitted, losses)
                assert (run.completed, run.failed, run.segments) == (0, 0, [])
        w.router.allow = None
        async with scheduler_member(client, objects, "last", settings):
            await w.recorded(submitted, 1)
            await w.submitter.cancel(submitted)
            batch = await w.ended(submitted)
        errors = {e["custom_id"]: e["error"]["code"] for e in await w.lines(batch.error_file_id)}
        assert errors["lost-1"] == "engine_error"
        assert w.router.executed["lost-1"] == limits.max_losses
        assert (await w.run(submitted)).losses == {}


async def lost_so_often(w: World, submitted: Submitted, times: int) -> RunRecord:
    """The run's record once it says so of its second line, and of no other."""
    key = keys.run(submitted.run_id)
    return await until(w.client, key, RunRecord, lambda run: run.losses == {2: times})
