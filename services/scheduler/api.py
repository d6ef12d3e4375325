"""The scheduler over gRPC: check, delegate, map the error, fill."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from impala.modelserver.v1 import modelserver_pb2
from impala.scheduler.v1 import scheduler_pb2, scheduler_pb2_grpc
from libs.errors import InvalidArgument
from libs.hashing import HASH_BYTES, unpack
from libs.records.ledger_message import ledger_message
from services.scheduler.app.desk import Granted
from services.scheduler.app.executor import Progress
from services.scheduler.app.leader import FleetLeader
from services.scheduler.app.scheduler import Scheduler
from services.scheduler.core.decision import Decision
from services.scheduler.core.errors import NoDecision, NotLeader, TooLate
from services.scheduler.core.ledger import Clocks, StepUse
from services.scheduler.core.server import Server
from services.scheduler.core.step import Step, Window

SERVICE = "impala.scheduler.v1.Scheduler"
WATCH_EVERY_S = 0.25
TERMINAL = frozenset({"completed", "failed", "expired", "cancelled"})

Context = Any  # grpc.aio.ServicerContext; its generics say nothing here.


class SchedulerApi(scheduler_pb2_grpc.SchedulerServicer):
    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler

    async def Acquire(
        self, request: scheduler_pb2.AcquireRequest, context: Context
    ) -> scheduler_pb2.AcquireResponse:
        step = step_of(request, self._scheduler.clock.now())
        fleet = self._scheduler.fleet_of(request.job_id, request.model)
        leader = await self._scheduler.leader_of(fleet)
        try:
            async with asyncio.timeout(self._seconds_until(request.deadline_unix_ms)):
                granted = await leader.desk.acquire(step)
        except TimeoutError:
            raise TooLate from None
        return acquire_response(fleet, granted)

    async def Release(
        self, request: scheduler_pb2.ReleaseRequest, context: Context
    ) -> scheduler_pb2.ReleaseResponse:
        if bool(request.grant_id) == bool(request.step_id):
            raise InvalidArgument(
                "A release names its grant, or the step of it.", "GRANT_ID_MISSING", "grant_id"
            )
        for leader in self._scheduler.leaders():
            if request.step_id:
                leader.desk.release_step(request.step_id)
            elif leader.epoch == request.epoch:
                leader.desk.release(request.grant_id)
        return scheduler_pb2.ReleaseResponse()

    async def Report(
        self, request: scheduler_pb2.ReportRequest, context: Context
    ) -> scheduler_pb2.ReportResponse:
        _check_report(request)
        leader = await self._leader_of_member(request.member_id)
        _book(leader, request)
        return scheduler_pb2.ReportResponse(
            acknowledged=leader.keeper.acknowledged(request.incarnation), epoch=leader.epoch
        )

    async def GetFleets(
        self, request: scheduler_pb2.GetFleetsRequest, context: Context
    ) -> scheduler_pb2.GetFleetsResponse:
        now_ms = int(self._scheduler.clock.time() * 1000)
        now = self._scheduler.clock.now()
        fleets = [self._fleet_view(leader, now, now_ms) for leader in self._scheduler.leaders()]
        return scheduler_pb2.GetFleetsResponse(fleets=fleets)

    async def Explain(
        self, request: scheduler_pb2.ExplainRequest, context: Context
    ) -> scheduler_pb2.ExplainResponse:
        if bool(request.step_id) == bool(request.trace_id):
            raise InvalidArgument("Name a step or a trace.", "ONE_OF_TWO", "step_id")
        clock = self._scheduler.clock
        offset = clock.time() - clock.now()
        decisions = [
            decision_message(decision, offset)
            for leader in self._scheduler.leaders()
            for decision in leader.desk.state.history.find(request.step_id, request.trace_id)
        ]
        if not decisions:
            raise NoDecision
        return scheduler_pb2.ExplainResponse(decisions=decisions)

    async def GetRun(
        self, request: scheduler_pb2.GetRunRequest, context: Context
    ) -> scheduler_pb2.RunProgress:
        return progress_message(await self._scheduler.run_progress(request.run_id))

    async def WatchRun(
        self, request: scheduler_pb2.GetRunRequest, context: Context
    ) -> AsyncIterator[scheduler_pb2.RunProgress]:
        shown: tuple[object, ...] = ()
        while True:
            progress = await self._scheduler.run_progress(request.run_id)
            now = (progress.status, progress.completed, progress.failed, progress.running)
            if now != shown:
                shown = now
                yield progress_message(progress)
            if progress.status in TERMINAL:
                return
            await self._scheduler.clock.sleep(WATCH_EVERY_S)

    def _seconds_until(self, unix_ms: int) -> float | None:
        """None = no deadline."""
        return unix_ms / 1000.0 - self._scheduler.clock.time() if unix_ms else None

    async def _leader_of_member(self, member_id: str) -> FleetLeader:
        """The leader here that has the server; a server that left the cluster may still report."""
        leaders = self._scheduler.leaders()
        for leader in leaders:
            if member_id in self._scheduler.views.model_servers(leader.fleet):
                return leader
        for fleet in sorted(self._scheduler.views.fleets()):
            if member_id in self._scheduler.views.model_servers(fleet):
                return await self._scheduler.leader_of(fleet)
        if len(leaders) == 1:
            return leaders[0]
        raise NotLeader(f"of {member_id}", "")

    def _fleet_view(self, leader: FleetLeader, now: float, now_ms: int) -> scheduler_pb2.FleetView:
        state = leader.desk.state
        members = self._scheduler.views.model_servers(leader.fleet)
        return scheduler_pb2.FleetView(
            fleet=leader.fleet,
            model=next((info.model for info in members.values()), ""),
            leader=self._scheduler.member_id,
            epoch=leader.epoch,
            servers=[
                server_view(
                    server,
                    len(state.grants.places(server.member_id).fresh)
                    + len(state.grants.places(server.member_id).overdue),
                    now_ms - int((now - server.seen_at) * 1000),
                )
                for server in state.servers.values()
            ],
            queued_steps=len(state.waiting),
            active_traces=state.active_traces(),
        )


def step_of(request: scheduler_pb2.AcquireRequest, now: float) -> Step:
    """Raises InvalidArgument naming the field."""
    if not request.step_id:
        raise InvalidArgument("A step has an id.", "STEP_ID_MISSING", "step_id")
    if not request.job_id and not request.model:
        raise InvalidArgument("Name the job or the model.", "MODEL_MISSING", "job_id")
    return Step(
        step_id=request.step_id,
        arrived=now,
        prompt_tokens=request.prompt_tokens,
        hashes=tuple(_hashes(request.content_hashes, "content_hashes")),
        max_tokens=request.max_tokens,
        choices=max(1, request.n),
        window=Window(request.window) if request.window in _WINDOWS else Window.STANDARD,
        account=request.account,
        job_id=request.job_id,
        trace_id=request.trace_id,
        run_id=request.run_id,
        router_id=request.router_id,
        exclude_member=request.exclude_member,
    )


_WINDOWS = frozenset(int(window) for window in Window)


def _hashes(packed: bytes, field: str) -> list[bytes]:
    if len(packed) % HASH_BYTES:
        message = f"{len(packed)} bytes are not a whole number of {HASH_BYTES}-byte hashes."
        raise InvalidArgument(message, "HASHES_TORN", field)
    return unpack(packed)


def acquire_response(fleet: str, granted: Granted) -> scheduler_pb2.AcquireResponse:
    grant = granted.grant
    return scheduler_pb2.AcquireResponse(
        step_id=grant.step.step_id,
        grant=modelserver_pb2.Grant(
            grant_id=grant.grant_id,
            fleet=fleet,
            epoch=grant.epoch,
            expires_unix_ms=granted.expires_unix_ms,
            valid_s=granted.valid_s,
            member_id=grant.member_id,
            trace_id=grant.step.trace_id,
            incarnation=grant.incarnation,
        ),
        address=grant.address,
        min_seq=grant.weight_seq,
        expected_cached_tokens=grant.cached_tokens,
        waited_s=granted.waited_s,
    )


def _check_report(request: scheduler_pb2.ReportRequest) -> None:
    if not request.member_id or not request.incarnation:
        raise InvalidArgument("A report names its server.", "MEMBER_MISSING", "member_id")
    first = request.steps[0].sequence if request.steps else 1
    for sequence, step in enumerate(request.steps, max(1, first)):
        if step.sequence != sequence:
            raise InvalidArgument(
                "Sequences are ascending without gaps, from 1.", "SEQUENCE_ORDER", "steps.sequence"
            )
        _hashes(step.prompt_hashes, "steps.prompt_hashes")
        _hashes(step.output_hashes, "steps.output_hashes")


def _book(leader: FleetLeader, request: scheduler_pb2.ReportRequest) -> None:
    steps = [(step.sequence, step_use(step)) for step in request.steps]
    fresh = leader.keeper.book(request.incarnation, steps, request.acknowledged)
    leader.keeper.clock(request.incarnation, Clocks(request.uptime_s, request.busy_s_total))
    for is_new, step in zip(fresh, request.steps, strict=True):
        if is_new:
            hashes = unpack(step.prompt_hashes + step.output_hashes)
            leader.desk.finished(request.member_id, step.grant_id, hashes)


def step_use(step: scheduler_pb2.StepReport) -> StepUse:
    return StepUse(
        run_id=step.owner.run_id,
        engine_s=max(0.0, step.engine_s),
        prompt_tokens=step.usage.prompt_tokens,
        cached_tokens=step.usage.cached_tokens,
        completion_tokens=step.usage.completion_tokens,
        reasoning_tokens=step.usage.reasoning_tokens,
        self_placed=step.self_placed,
    )


def server_view(server: Server, granted: int, seen_unix_ms: int) -> scheduler_pb2.ServerView:
    return scheduler_pb2.ServerView(
        member_id=server.member_id,
        address=server.address,
        incarnation=server.incarnation,
        phase=server.phase,
        granted_steps=granted,
        running_steps=server.running_steps,
        waiting_steps=server.waiting_steps,
        free_blocks=server.free_blocks,
        total_blocks=server.total_blocks,
        seen_unix_ms=seen_unix_ms,
    )


def decision_message(decision: Decision, clock_offset_s: float) -> scheduler_pb2.Decision:
    return scheduler_pb2.Decision(
        step_id=decision.step_id,
        trace_id=decision.trace_id,
        at_unix_ms=int((decision.at + clock_offset_s) * 1000),
        chosen=decision.chosen,
        servers=[
            scheduler_pb2.ScoredServer(
                member_id=server.member_id,
                eligible=not server.why_not,
                why_not=server.why_not,
                scores=dict(server.scores),
                total=server.total,
            )
            for server in decision.servers
        ],
        why=decision.why,
    )


def progress_message(progress: Progress) -> scheduler_pb2.RunProgress:
    return scheduler_pb2.RunProgress(
        run_id=progress.run_id,
        batch_id=progress.batch_id,
        status=progress.status,
        total=progress.total,
        completed=progress.completed,
        failed=progress.failed,
        running=progress.running,
        ledger=ledger_message(progress.ledger),
        elapsed_s=progress.elapsed_s,
        eta_s=progress.eta_s,
        epoch=progress.epoch,
    )
