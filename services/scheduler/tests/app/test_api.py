"""Grants, reports and views over gRPC, against a real etcd."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import cast

import grpc
import msgspec
import pytest

from impala.common.v1 import common_pb2
from impala.scheduler.v1 import scheduler_pb2
from libs.cluster.client import EtcdClient
from libs.hashing import account_salt, content_hashes, pack
from libs.objects import ObjectStore
from libs.records import keys
from libs.records.batch import Job
from libs.records.book import FleetBook
from libs.testing import waiting
from services.scheduler.core.admission import AdmissionLimits
from services.scheduler.core.fleet import FleetLimits
from services.scheduler.testing import (
    FLEET,
    JOB,
    MODEL,
    FakeModelServer,
    lines_of,
    model_server_member,
    report,
    usage_of,
)
from services.scheduler.tests.app.harness import (
    Running,
    World,
    eventually,
    leads,
    read,
    scheduler_member,
    tokens,
    until,
    world,
)

TWO_PLACES = FleetLimits(
    admission=AdmissionLimits(overcommit=0.5, max_queue=3), start_within_s=0.3, grace_s=0.2
)
"""Of the fake server's batch of four."""


@asynccontextmanager
async def fleet(
    client: EtcdClient, objects: ObjectStore, limits: FleetLimits | None = None
) -> AsyncIterator[tuple[World, Running]]:
    async with (
        world(client, objects) as w,
        scheduler_member(client, objects, limits=limits) as running,
    ):
        await leads(running)
        yield w, running


def ask(step_id: str, **fields: object) -> scheduler_pb2.AcquireRequest:
    fields.setdefault("job_id", JOB.id)
    return scheduler_pb2.AcquireRequest(
        step_id=step_id,
        prompt_tokens=100,
        max_tokens=10,
        **fields,  # type: ignore[arg-type]
    )


async def acquire(
    running: Running, step_id: str, **fields: object
) -> scheduler_pb2.AcquireResponse:
    return await running.stub.Acquire(ask(step_id, **fields), timeout=10)


async def fails(call: object) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call  # type: ignore[misc]
    return caught.value


def trailers(error: grpc.aio.AioRpcError) -> dict[str, str]:
    return dict(cast("Iterable[tuple[str, str]]", error.trailing_metadata()))


def reason(error: grpc.aio.AioRpcError) -> str:
    return trailers(error)["impala-reason"]


async def queued(running: Running, count: int) -> None:
    desk = running.scheduler.leaders()[0].desk
    await eventually(lambda: len(desk.state.waiting) == count)
    desk.state.check_integrity()


async def send(running: Running, *steps: scheduler_pb2.StepReport) -> int:
    """The sequence up to which the server may forget its reports."""
    request = scheduler_pb2.ReportRequest(member_id="ms-1", incarnation="life-1", steps=steps)
    answer = await running.stub.Report(request, timeout=5)
    assert answer.epoch == running.scheduler.leaders()[0].epoch
    return answer.acknowledged


async def acknowledged(running: Running, sequence: int) -> None:
    """Returns once a server that asks again is told so."""

    async def told() -> bool:
        return await send(running) == sequence

    await waiting.eventually(told)


async def test_a_grant_names_server_epoch_and_time_to_start(
    client: EtcdClient, objects: ObjectStore
) -> None:
    async with fleet(client, objects) as (_, running):
        answer = await acquire(running, "s1", trace_id="t1")
        grant = answer.grant
        assert (answer.step_id, grant.member_id, grant.fleet) == ("s1", "ms-1", FLEET)
        assert (grant.incarnation, grant.trace_id) == ("life-1", "t1")
        assert grant.epoch == running.scheduler.leaders()[0].epoch > 0
        assert grant.expires_unix_ms > 1_700_000_000_000
        assert ":" in answer.address
        assert (await acquire(running, "s2", job_id="", model=MODEL)).grant.member_id == "ms-1"


async def test_the_same_step_asking_again_gets_the_same_grant(
    client: EtcdClient, objects: ObjectStore
) -> None:
    async with fleet(client, objects, TWO_PLACES) as (_, running):
        first, second = await asyncio.gather(acquire(running, "s1"), acquire(running, "s1"))
        third = await acquire(running, "s1")
        assert first.grant.grant_id == second.grant.grant_id == third.grant.grant_id
        assert len(running.scheduler.leaders()[0].desk.state.grants) == 1


async def test_a_step_waits_until_a_place_is_reported_free(
    client: EtcdClient, objects: ObjectStore
) -> None:
    async with fleet(client, objects, TWO_PLACES) as (w, running):
        w.server.running = 2
        held = [await acquire(running, f"s{n}") for n in range(2)]
        third = asyncio.create_task(acquire(running, "s3"))
        await queued(running, 1)
        w.server.running = 1
        await send(running, report(1, grant_id=held[0].grant.grant_id))
        assert (await third).grant.member_id == "ms-1"


async def test_interactive_steps_pass_batch_work(client: EtcdClient, objects: ObjectStore) -> None:
    async with fleet(client, objects, TWO_PLACES) as (w, running):
        w.server.running = 2
        held = [await acquire(running, f"s{n}") for n in range(2)]
        batch = asyncio.create_task(acquire(running, "later", window=common_pb2.WINDOW_BATCH))
        await queued(running, 1)
        asap = asyncio.create_task(acquire(running, "now", window=common_pb2.WINDOW_ASAP))
        await queued(running, 2)
        w.server.running = 1
        await send(running, report(1, grant_id=held[0].grant.grant_id))
        await asap
        assert not batch.done()
        batch.cancel()


async def test_cancelling_or_a_deadline_gives_the_place_up(
    client: EtcdClient, objects: ObjectStore
) -> None:
    async with fleet(client, objects, TWO_PLACES) as (w, running):
        w.server.running = 2
        for n in range(2):
            await acquire(running, f"s{n}")
        call = running.stub.Acquire(ask("gone"))
        await queued(running, 1)
        call.cancel()
        await queued(running, 0)
        for late in (
            running.stub.Acquire(ask("late"), timeout=0.2),
            running.stub.Acquire(ask("later", deadline_unix_ms=1), timeout=10),
        ):
            error = await fails(late)
            assert error.code() == grpc.StatusCode.DEADLINE_EXCEEDED
        await queued(running, 0)


async def test_released_and_unused_grants_return_their_place(
    client: EtcdClient, objects: ObjectStore
) -> None:
    async with fleet(client, objects, TWO_PLACES) as (_, running):
        grants = running.scheduler.leaders()[0].desk.state.grants
        answer = await acquire(running, "s1")
        request = scheduler_pb2.ReleaseRequest(
            grant_id=answer.grant.grant_id, epoch=answer.grant.epoch
        )
        for _ in range(2):
            await running.stub.Release(request, timeout=5)
        assert len(grants) == 0
        await acquire(running, "nobody heard of it")
        by_step = scheduler_pb2.ReleaseRequest(step_id="nobody heard of it")
        for _ in range(2):
            await running.stub.Release(by_step, timeout=5)
        assert len(grants) == 0
        await acquire(running, "never started")
        await eventually(lambda: len(grants) == 0)


async def test_a_full_queue_refuses_with_a_time_to_wait(
    client: EtcdClient, objects: ObjectStore
) -> None:
    async with fleet(client, objects, TWO_PLACES) as (w, running):
        w.server.running = 2
        for n in range(2):
            await acquire(running, f"s{n}")
        waiting = [asyncio.create_task(acquire(running, f"w{n}")) for n in range(3)]
        await queued(running, 3)
        error = await fails(acquire(running, "one too many"))
        assert error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert reason(error) == "QUEUE_FULL"
        assert trailers(error)["retry-after-ms"] == "1000"
        for task in waiting:
            task.cancel()
        await queued(running, 0)


async def test_a_fleet_without_servers_says_so(client: EtcdClient, objects: ObjectStore) -> None:
    async with scheduler_member(client, objects) as running:
        await client.put(keys.job(JOB.id), msgspec.json.encode(JOB))
        await eventually(lambda: bool(running.scheduler.leaders()))
        error = await fails(acquire(running, "s1"))
        assert (error.code(), reason(error)) == (grpc.StatusCode.UNAVAILABLE, "NO_SERVERS")
        error = await fails(acquire(running, "s1", job_id="job-ffffffff"))
        assert (error.code(), reason(error)) == (grpc.StatusCode.NOT_FOUND, "NO_FLEET")
        error = await fails(acquire(running, "s1", job_id="", model="unknown"))
        assert (error.code(), reason(error)) == (grpc.StatusCode.NOT_FOUND, "NO_FLEET")


async def test_a_fleet_shows_its_servers_steps_and_phase(
    client: EtcdClient, objects: ObjectStore
) -> None:
    async with fleet(client, objects) as (w, running):

        async def shown() -> tuple[str, int]:
            view = await running.stub.GetFleets(scheduler_pb2.GetFleetsRequest(), timeout=5)
            (server,) = view.fleets[0].servers
            return server.phase, server.running_steps

        assert await shown() == ("serving", 0)
        w.server.running = 3
        await eventually(lambda: running.scheduler.leaders()[0].desk.state.load("ms-1") == 3)
        assert await shown() == ("serving", 1)
        w.server.phase = "draining"
        await eventually(lambda: not running.scheduler.leaders()[0].desk.state.serving)
        assert (await shown())[0] == "draining"


async def test_waiting_steps_are_told_when_the_last_server_is_gone(
    client: EtcdClient, objects: ObjectStore
) -> None:
    await client.put(keys.job(JOB.id), msgspec.json.encode(JOB))
    async with scheduler_member(client, objects, limits=TWO_PLACES) as running:
        async with model_server_member(client, FakeModelServer(running=2)):
            await leads(running)
            waiting = asyncio.create_task(acquire(running, "s1"))
            await queued(running, 1)
        assert reason(await fails(waiting)) == "NO_SERVERS"


async def test_a_standby_points_to_the_leader(client: EtcdClient, objects: ObjectStore) -> None:
    async with (
        fleet(client, objects) as (_, leader),
        scheduler_member(client, objects, "standby") as standby,
    ):
        error = await fails(acquire(standby, "s1"))
        assert error.code() == grpc.StatusCode.FAILED_PRECONDITION
        assert reason(error) == "NOT_LEADER"
        assert trailers(error)["impala-leader"] == leader.address


async def test_a_report_is_booked_once_and_acknowledged_only_when_written(
    client: EtcdClient, objects: ObjectStore
) -> None:
    async with fleet(client, objects) as (w, running):
        w.router.allow = 0
        submitted = await w.submitter.submit(lines_of(["ok-1"]))
        await w.run_begun(submitted)
        keeper = running.scheduler.leaders()[0].keeper
        await eventually(lambda: submitted.run_id in keeper.booked_runs())
        one = report(1, run_id=submitted.run_id, engine_s=2.0)
        three = report(3, run_id=submitted.run_id, engine_s=4.0)
        await send(running, one)
        await acknowledged(running, 1)
        assert await send(running, one) == 1
        assert await send(running, three) == 1  # the second went to another leader: not booked
        assert keeper.use_of(submitted.run_id).busy_engine_s == pytest.approx(2.0)
        await send(running, report(2, run_id=submitted.run_id), three)
        await acknowledged(running, 3)
        book = await read(client, keys.fleet_book(FLEET), FleetBook)
        assert book.booked["life-1"] == 3
        assert book.runs[submitted.run_id].busy_engine_s == pytest.approx(7.0)
        w.router.allow = None
        await w.ended(submitted)
        ledger = (await w.run(submitted)).ledger
        line = usage_of("ok-1")
        assert tokens(ledger) == (line.prompt_tokens, line.cached_tokens, line.completion_tokens)
        assert ledger.computed_tokens == 3 * (10 - 4 + 5)
        assert ledger.busy_engine_s == pytest.approx(7.0)
        assert ledger.self_placed_steps == 3
        assert ledger.processing_cost == pytest.approx(ledger.wall_engine_s * 0.001)
        await until(client, keys.fleet_book(FLEET), FleetBook, lambda book: not book.runs)


async def test_a_new_leader_knows_what_was_booked(client: EtcdClient, objects: ObjectStore) -> None:
    async with world(client, objects) as w:
        w.router.allow = 0
        async with scheduler_member(client, objects, "first") as running:
            await leads(running)
            submitted = await w.submitter.submit(lines_of(["ok-1"]))
            await w.run_begun(submitted)
            keeper = running.scheduler.leaders()[0].keeper
            await eventually(lambda: submitted.run_id in keeper.booked_runs())
            await send(running, report(1, run_id=submitted.run_id, engine_s=2.0))
            await acknowledged(running, 1)
        async with scheduler_member(client, objects, "second") as running:
            await leads(running)
            again = [report(n, run_id=submitted.run_id, engine_s=2.0) for n in (1, 2)]
            await send(running, *again)
            await acknowledged(running, 2)
            w.router.allow = None
            await w.ended(submitted)
        assert (await w.run(submitted)).ledger.busy_engine_s == pytest.approx(4.0)


async def test_idle_time_of_the_servers_is_charged_to_the_runs_that_go_on(
    client: EtcdClient, objects: ObjectStore
) -> None:
    async with fleet(client, objects) as (w, running):
        w.router.allow = 0
        submitted = await w.submitter.submit(lines_of(["ok-1"]))
        await w.run_begun(submitted)
        keeper = running.scheduler.leaders()[0].keeper
        await eventually(lambda: submitted.run_id in keeper.booked_runs())
        w.server.uptime_s, w.server.busy_s = 20.0, 4.0
        await eventually(lambda: keeper.use_of(submitted.run_id).idle_engine_s > 0)
        w.router.allow = None
        await w.ended(submitted)
        assert (await w.run(submitted)).ledger.idle_engine_s == pytest.approx(6.0)


async def test_a_step_goes_where_its_prefix_is_and_the_placement_is_explained(
    client: EtcdClient, objects: ObjectStore
) -> None:
    hashes = pack(content_hashes(account_salt("local"), list(range(96))))
    async with (
        fleet(client, objects) as (_, running),
        model_server_member(client, FakeModelServer(member_id="ms-2", incarnation="life-2")),
    ):
        state = running.scheduler.leaders()[0].desk.state
        await eventually(lambda: len(state.servers) == 2)
        first = await acquire(running, "s1", content_hashes=hashes, trace_id="t")
        assert first.expected_cached_tokens == 0
        second = await acquire(running, "s2", content_hashes=hashes, trace_id="t")
        assert second.grant.member_id == first.grant.member_id
        assert second.expected_cached_tokens == 96
        explained = await running.stub.Explain(
            scheduler_pb2.ExplainRequest(trace_id="t"), timeout=5
        )
        assert [d.step_id for d in explained.decisions] == ["s2", "s1"]
        decision = explained.decisions[0]
        assert decision.chosen == first.grant.member_id and decision.why
        scores = {s.member_id: s.scores["prefix"] for s in decision.servers}
        assert scores == {decision.chosen: pytest.approx(0.96), _other(decision.chosen): 0.0}
        fleets = await running.stub.GetFleets(scheduler_pb2.GetFleetsRequest(), timeout=5)
        assert [f.fleet for f in fleets.fleets] == [FLEET]
        assert {s.granted_steps for s in fleets.fleets[0].servers} == {0, 2}
        assert fleets.fleets[0].active_traces == 1


def _other(member_id: str) -> str:
    return "ms-2" if member_id == "ms-1" else "ms-1"


async def test_wrong_requests_name_the_field(client: EtcdClient, objects: ObjectStore) -> None:
    async with fleet(client, objects) as (_, running):
        wrong = [
            (running.stub.Acquire(ask("")), "step_id"),
            (running.stub.Acquire(ask("s", job_id="")), "job_id"),
            (running.stub.Acquire(ask("s", content_hashes=b"short")), "content_hashes"),
            (running.stub.Release(scheduler_pb2.ReleaseRequest()), "grant_id"),
            (
                running.stub.Release(scheduler_pb2.ReleaseRequest(grant_id="1.1", step_id="s")),
                "grant_id",
            ),
            (running.stub.Report(scheduler_pb2.ReportRequest()), "member_id"),
            (running.stub.Explain(scheduler_pb2.ExplainRequest()), "step_id"),
        ]
        for call, field in wrong:
            error = await fails(call)
            assert error.code() == grpc.StatusCode.INVALID_ARGUMENT
            assert trailers(error)["impala-field"] == field
        for torn in ((report(2), report(1)), (report(1), report(3)), (report(0),)):
            error = await fails(send(running, *torn))
            assert trailers(error)["impala-field"] == "steps.sequence"
        run = scheduler_pb2.GetRunRequest(run_id="run-none")
        assert reason(await fails(running.stub.GetRun(run))) == "NO_RUN"
        explain = scheduler_pb2.ExplainRequest(step_id="never asked")
        assert reason(await fails(running.stub.Explain(explain))) == "NO_DECISION"


async def test_a_job_without_a_fleet_goes_where_its_model_is_served(
    client: EtcdClient, objects: ObjectStore
) -> None:
    job = Job(
        id="job-00000002",
        model=MODEL,
        fleet="",
        account="local",
        price_per_engine_hour=1.0,
        created_at=1,
    )
    async with fleet(client, objects) as (w, running):
        await w.submitter.job(job)
        await eventually(lambda: running.scheduler.views.jobs.get(job.id) is not None)
        assert (await acquire(running, "s1", job_id=job.id)).grant.fleet == FLEET
