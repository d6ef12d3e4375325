"""A batch from creation to its files."""

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from impala.router.v1 import router_pb2
from impala.scheduler.v1 import scheduler_pb2
from libs.cluster.client import EtcdClient
from libs.cluster.membership import Membership
from libs.errors import Unavailable
from libs.objects import ObjectStore
from libs.records import keys
from libs.records.batch import FileRecord
from libs.records.members import RouterInfo
from libs.testing.rpc import free_port
from libs.units.durations import DurationSketch
from services.scheduler.testing import (
    ACCOUNT,
    FLEET,
    JOB,
    FakeRouter,
    lines_of,
    router_member,
    usage_of,
)
from services.scheduler.tests.app.harness import (
    FAST,
    Running,
    eventually,
    leads,
    read,
    scheduler_member,
    tokens,
    world,
)


async def test_a_batch_ends_completed_with_every_line_in_one_of_its_files(
    client: EtcdClient, objects: ObjectStore
) -> None:
    wanted = [f"ok-{n}" for n in range(50)] + [f"bad-{n}" for n in range(7)]
    async with world(client, objects) as w, scheduler_member(client, objects):
        submitted = await w.submitter.submit(lines_of(wanted))
        batch = await w.ended(submitted)
        run = await w.run(submitted)

        assert batch.status == "completed"
        assert (batch.fleet, batch.job_id, batch.model) == (FLEET, JOB.id, JOB.model)
        assert batch.in_progress_at and batch.finalizing_at and batch.completed_at
        assert (run.total, run.completed, run.failed) == (57, 50, 7)
        assert run.ended_at is not None
        assert sorted(await w.custom_ids(batch.output_file_id)) == sorted(wanted[:50])
        assert sorted(await w.custom_ids(batch.error_file_id)) == sorted(wanted[50:])
        assert set(w.router.executed.values()) == {1}
        assert run.ledger.tasks == 50
        assert tokens(run.ledger) == await w.usage(batch.output_file_id)
        assert DurationSketch.from_list(run.ledger.task_seconds).count == 50
        assert await client.get(keys.file_ref(submitted.input_file_id, submitted.batch_id)) is None


async def test_files_exist_only_for_the_kinds_of_line_there_are(
    client: EtcdClient, objects: ObjectStore
) -> None:
    async with world(client, objects) as w, scheduler_member(client, objects):
        all_failed = await w.submitter.submit(lines_of(["bad-1", "bad-2"]))
        all_well = await w.submitter.submit(lines_of(["ok-1"]), output_expires_after_s=3600)
        failed, well = await w.ended(all_failed), await w.ended(all_well)

        assert (failed.status, failed.output_file_id) == ("completed", None)
        assert sorted(await w.custom_ids(failed.error_file_id)) == ["bad-1", "bad-2"]
        assert (well.status, well.error_file_id) == ("completed", None)
        file = await read(client, keys.file(ACCOUNT, well.output_file_id or ""), FileRecord)
        assert file.expires_at == file.created_at + 3600


async def test_a_file_that_does_not_validate_fails_and_nothing_is_executed(
    client: EtcdClient, objects: ObjectStore
) -> None:
    async with world(client, objects) as w, scheduler_member(client, objects):
        w.router.faults = [
            router_pb2.BatchError(code="invalid_json_line", message="not JSON", line=3),
            router_pb2.BatchError(code="empty_file", message="empty"),
        ]
        submitted = await w.submitter.submit(b"x\n")
        batch = await w.ended(submitted)

        assert batch.status == "failed" and batch.failed_at
        assert [(e.code, e.line) for e in batch.errors] == [
            ("invalid_json_line", 3),
            ("empty_file", None),
        ]
        assert not w.router.executed
        assert await client.get(keys.run(submitted.run_id)) is None
        assert await client.get(keys.file_ref(submitted.input_file_id, submitted.batch_id)) is None


async def test_a_missing_input_object_fails_the_batch_with_a_reason(
    client: EtcdClient, objects: ObjectStore
) -> None:
    async with world(client, objects) as w, scheduler_member(client, objects):
        batch = await w.ended(await w.submitter.submit(None))
        assert batch.status == "failed"
        assert [error.code for error in batch.errors] == ["object_not_found"]
        assert "files/" not in batch.errors[0].message


async def test_an_index_lost_before_execution_fails_the_run_with_a_reason(
    client: EtcdClient, objects: ObjectStore
) -> None:
    async with world(client, objects) as w:
        w.router.hold = asyncio.Event()
        submitted = await w.submitter.submit(lines_of(["ok-1", "ok-2"]))
        async with scheduler_member(client, objects, "first"):
            await w.run_begun(submitted)
        await objects.delete(keys.index_object(submitted.run_id))
        async with scheduler_member(client, objects, "second"):
            batch = await w.ended(submitted)
        run = await w.run(submitted)
        assert batch.status == "failed" and "index" in batch.errors[0].message
        assert run.error == batch.errors[0].message
        assert run.completed + run.failed == run.total == 2
        assert run.unanswered == run.failed


async def test_a_cancelled_batch_keeps_what_was_done_and_names_every_other_line(
    client: EtcdClient, objects: ObjectStore
) -> None:
    lines = [f"ok-{n}" for n in range(5)] + [f"hang-é{n}" for n in range(60)]
    async with world(client, objects) as w, scheduler_member(client, objects) as running:
        submitted = await w.submitter.submit(lines_of(lines))
        await w.recorded(submitted, 5)
        await w.submitter.cancel(submitted)
        batch = await w.ended(submitted)
        run = await w.run(submitted)

        assert batch.status == "cancelled"
        assert batch.cancelling_at == 1700000000 and batch.cancelled_at
        assert (run.completed, run.failed, run.unanswered) == (5, 60, 60)
        assert sorted(await w.custom_ids(batch.output_file_id)) == sorted(lines[:5])
        errors = await w.lines(batch.error_file_id)
        assert sorted(str(error["custom_id"]) for error in errors) == sorted(lines[5:])
        assert all(error["response"] is None for error in errors)
        assert {error["error"]["code"] for error in errors} == {"batch_cancelled"}
        assert await client.get(keys.cancel(submitted.batch_id)) is None
        progress = await running.stub.GetRun(
            scheduler_pb2.GetRunRequest(run_id=submitted.run_id), timeout=5
        )
        assert (progress.status, progress.completed, progress.failed) == ("cancelled", 5, 60)


async def test_a_batch_can_be_cancelled_while_nobody_can_validate_it(
    client: EtcdClient, objects: ObjectStore
) -> None:
    async with world(client, objects) as w:
        submitted = await w.submitter.submit(lines_of(["ok-1"]))
        await w.submitter.cancel(submitted)
        async with scheduler_member(client, objects):
            batch = await w.ended(submitted)
        assert batch.status == "cancelled"
        assert batch.output_file_id is None and batch.error_file_id is None


async def test_at_its_expiry_unfinished_lines_become_errors(
    client: EtcdClient, objects: ObjectStore
) -> None:
    lines = ["ok-1", "hang-1", "hang-2"]
    async with world(client, objects) as w, scheduler_member(client, objects):
        submitted = await w.submitter.submit(lines_of(lines), expires_at=int(time.time()) + 2)
        batch = await w.ended(submitted)

        assert batch.status == "expired" and batch.expired_at
        assert await w.custom_ids(batch.output_file_id) == ["ok-1"]
        errors = await w.lines(batch.error_file_id)
        assert [error["custom_id"] for error in errors] == ["hang-1", "hang-2"]
        assert errors[0]["error"] == {
            "code": "batch_expired",
            "message": "This request could not be executed before the completion window expired.",
        }


async def test_a_line_that_fails_after_it_used_tokens_is_counted_with_them(
    client: EtcdClient, objects: ObjectStore
) -> None:
    async with world(client, objects) as w, scheduler_member(client, objects):
        submitted = await w.submitter.submit(lines_of(["ok-1", "bad-1", "bad-used-1"]))
        await w.ended(submitted)
        used = [usage_of("ok-1"), usage_of("bad-used-1")]
        ledger = (await w.run(submitted)).ledger
        assert ledger.prompt_tokens == sum(usage.prompt_tokens for usage in used)
        assert ledger.completion_tokens == sum(usage.completion_tokens for usage in used)


async def test_lines_of_a_broken_stream_are_handed_out_again(
    client: EtcdClient, objects: ObjectStore
) -> None:
    wanted = [f"ok-{n}" for n in range(40)]
    async with world(client, objects) as w, scheduler_member(client, objects):
        w.router.break_after = 5
        submitted = await w.submitter.submit(lines_of(wanted))
        batch = await w.ended(submitted)
        assert batch.status == "completed"
        assert sorted(await w.custom_ids(batch.output_file_id)) == sorted(wanted)
        assert w.router.break_after is None
        ledger = (await w.run(submitted)).ledger
        assert tokens(ledger) == await w.usage(batch.output_file_id)


async def test_a_damaged_record_is_not_taken_and_its_line_is_run_again(
    client: EtcdClient, objects: ObjectStore
) -> None:
    async with world(client, objects) as w, scheduler_member(client, objects):
        w.router.spoil = "ok-3"
        batch = await w.ended(await w.submitter.submit(lines_of([f"ok-{n}" for n in range(6)])))
        assert batch.status == "completed"
        assert len(await w.custom_ids(batch.output_file_id)) == 6
        assert w.router.executed["ok-3"] == 2


async def test_a_router_that_is_registered_but_dead_gets_no_lines(
    client: EtcdClient, objects: ObjectStore
) -> None:
    async with world(client, objects) as w, scheduler_member(client, objects):
        dead = RouterInfo(address=f"127.0.0.1:{free_port()}", http_url="", incarnation="x")
        async with Membership(client, "router", "dead", msgspec.to_builtins(dead), incarnation="x"):
            batch = await w.ended(await w.submitter.submit(lines_of(["ok-1", "ok-2"])))
        assert sorted(await w.custom_ids(batch.output_file_id)) == ["ok-1", "ok-2"]
        assert set(w.router.executed.values()) == {1}


class Refusing(FakeRouter):
    """Breaks every stream at once."""

    tries = 0

    async def Execute(
        self, request_iterator: AsyncIterator[router_pb2.ExecuteRequest], context: Any
    ) -> AsyncIterator[router_pb2.ExecuteResponse]:
        self.tries += 1
        raise Unavailable("This router is ill.", "ILL")
        yield router_pb2.ExecuteResponse()  # makes it an async generator


async def test_a_router_whose_streams_break_again_and_again_is_told_of_once(
    client: EtcdClient, objects: ObjectStore, caplog: pytest.LogCaptureFixture
) -> None:
    ill = Refusing(objects)
    async with (
        world(client, objects) as w,
        router_member(client, ill, "ill"),
        scheduler_member(client, objects),
    ):
        w.router.hold = asyncio.Event()
        submitted = await w.submitter.submit(lines_of(["ok-1", "ok-2"]))
        await eventually(lambda: ill.tries >= 4)
        w.router.hold.set()
        assert (await w.ended(submitted)).status == "completed"
    told = [record for record in caplog.records if record.message == "a router's stream broke"]
    assert len(told) == 1


async def test_lines_wait_while_no_server_serves_and_use_up_no_attempts(
    client: EtcdClient, objects: ObjectStore
) -> None:
    async with world(client, objects) as w, scheduler_member(client, objects) as running:
        w.server.phase = "loading"
        await eventually(lambda: not _serves(running))
        submitted = await w.submitter.submit(lines_of(["ok-1"]))
        await w.run_begun(submitted)
        await eventually(lambda: bool(w.router.epochs))
        assert w.router.received == 0
        w.server.phase = "serving"
        assert (await w.ended(submitted)).status == "completed"


def _serves(running: Running) -> bool:
    leaders = running.scheduler.leaders()
    return not leaders or not leaders[0].desk.state.servers or leaders[0].desk.state.serving


@pytest.mark.parametrize(
    ("custom_id", "tries", "why"),
    [
        ("retry-1", FAST.limits.max_attempts, "no server"),
        (
            "lost-1",
            FAST.limits.max_losses,
            "The model server was lost while it ran this request.",
        ),
    ],
)
async def test_a_line_that_never_runs_to_its_end_ends_as_an_error(
    client: EtcdClient, objects: ObjectStore, custom_id: str, tries: int, why: str
) -> None:
    async with world(client, objects) as w, scheduler_member(client, objects):
        batch = await w.ended(await w.submitter.submit(lines_of(["ok-1", custom_id])))
        errors = await w.lines(batch.error_file_id)
        assert [error["custom_id"] for error in errors] == [custom_id]
        assert errors[0]["error"] == {
            "code": "engine_error",
            "message": f"This request could not be executed: {why}",
        }
        assert w.router.executed[custom_id] == tries


async def test_the_window_bounds_what_is_handed_out(
    client: EtcdClient, objects: ObjectStore
) -> None:
    settings = replace(FAST, min_window=4, max_window=6)
    async with world(client, objects) as w, scheduler_member(client, objects, settings=settings):
        w.router.hold = asyncio.Event()
        submitted = await w.submitter.submit(lines_of([f"ok-{n}" for n in range(30)]))
        await eventually(lambda: w.router.received >= 6)
        w.router.hold.set()
        assert (await w.ended(submitted)).status == "completed"
        assert w.router.most_unanswered <= 6


async def test_two_routers_share_a_run(client: EtcdClient, objects: ObjectStore) -> None:
    async with world(client, objects) as w, router_member(client, FakeRouter(objects), "r2") as r2:
        w.server.phase = "loading"
        async with scheduler_member(client, objects):
            submitted = await w.submitter.submit(lines_of([f"ok-{n}" for n in range(40)]))
            await eventually(lambda: bool(w.router.epochs) and bool(r2.epochs))
            w.server.phase = "serving"
            batch = await w.ended(submitted)
        assert len(await w.custom_ids(batch.output_file_id)) == 40
        assert w.router.executed and r2.executed
        assert set((w.router.executed + r2.executed).values()) == {1}


async def test_lines_that_share_a_trace_are_one_task(
    client: EtcdClient, objects: ObjectStore
) -> None:
    async with world(client, objects) as w, scheduler_member(client, objects):
        w.router.trace_of = lambda custom_id: custom_id[:4]
        submitted = await w.submitter.submit(lines_of(["ok-a1", "ok-a2", "ok-b1"]))
        await w.ended(submitted)
        ledger = (await w.run(submitted)).ledger
        assert ledger.tasks == DurationSketch.from_list(ledger.task_seconds).count == 2


async def test_a_batch_that_no_server_can_take_does_not_hold_up_others(
    client: EtcdClient, objects: ObjectStore
) -> None:
    """A job whose model nobody serves: its batch waits, and can be cancelled."""
    async with world(client, objects) as w, scheduler_member(client, objects):
        w.router.job_id = "job-00000009"
        await w.submitter.job(msgspec.structs.replace(JOB, id="job-00000009", model="m", fleet=""))
        waiting = [await w.submitter.submit(lines_of(["ok-1"])) for _ in range(6)]
        await eventually(lambda: w.router.indexed == 6)
        w.router.job_id = JOB.id
        assert (await w.ended(await w.submitter.submit(lines_of(["ok-1"])))).status == "completed"
        for each in waiting:
            await w.submitter.cancel(each)
        assert {(await w.ended(each)).status for each in waiting} == {"cancelled"}


async def test_progress_is_pushed_until_the_run_has_ended(
    client: EtcdClient, objects: ObjectStore
) -> None:
    async with world(client, objects) as w, scheduler_member(client, objects) as running:
        await leads(running)
        w.router.hold = asyncio.Event()
        submitted = await w.submitter.submit(lines_of(["ok-1", "ok-2"]))
        await w.run_begun(submitted)
        seen = []
        watch = running.stub.WatchRun(
            scheduler_pb2.GetRunRequest(run_id=submitted.run_id), timeout=10
        )
        async for progress in watch:
            seen.append(progress)
            w.router.hold.set()
        assert seen[0].completed == 0 and seen[0].total == 2
        assert (seen[-1].status, seen[-1].completed) == ("completed", 2)
