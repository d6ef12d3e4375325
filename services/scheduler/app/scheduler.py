"""The scheduler's roles: candidate for intake and for every fleet, leader where it won.

One task a role. Losing a role ends its work and the candidate stands again; the other roles are not
touched.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

import msgspec

from libs.clock import Clock
from libs.cluster.election import Election, Leadership
from libs.cluster.errors import PASSING
from libs.records import keys
from libs.records.batch import RunRecord
from services.scheduler.app.executor import Progress
from services.scheduler.app.intake import Intake, IntakeSettings
from services.scheduler.app.leader import Deps, FleetLeader
from services.scheduler.app.views import ClusterViews
from services.scheduler.app.writer import GuardedWriter, LeadershipLost
from services.scheduler.core.errors import NoFleet, NoRun, NotLeader, StateUnavailable

log = logging.getLogger(__name__)

RESTART_S = 1.0
"""After a role's work failed for an unexpected reason."""


class Scheduler:
    """`run` until cancelled. `member_id` is what observers of the elections are told; it must be
    registered as a member of "scheduler"."""

    def __init__(
        self,
        member_id: str,
        deps: Deps,
        *,
        election_ttl_s: int = 5,
        intake: IntakeSettings | None = None,
    ) -> None:
        self.member_id = member_id
        self._deps = deps
        self._ttl_s = election_ttl_s
        self._intake = intake or IntakeSettings()
        self._leaders: dict[str, FleetLeader] = {}
        self._leads = deps.metrics.gauge(
            "impala_scheduler_leads", "1 where this scheduler leads.", ["role"]
        )

    async def run(self) -> None:
        views = self._deps.views
        candidates: set[str] = set()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._serve_role(keys.ELECTION_INTAKE, self._lead_intake))
            while True:
                for fleet in sorted(views.fleets() - candidates):
                    candidates.add(fleet)
                    group.create_task(self._stand_for_fleet(fleet))
                await views.any_change(10.0, views.servers, views.jobs, views.batches)

    # What api asks

    def leaders(self) -> list[FleetLeader]:
        """The fleets led here."""
        return [self._leaders[fleet] for fleet in sorted(self._leaders)]

    def fleet_of(self, job_id: str, model: str) -> str:
        """Raises NoFleet."""
        views = self._deps.views
        if job_id:
            job = views.jobs.get(job_id)
            fleet = views.fleet_of_job(job) if job is not None else None
            if fleet is None:
                raise NoFleet(f"job {job_id!r}", "job_id")
            return fleet
        fleet = views.fleet_of_model(model)
        if fleet is None:
            raise NoFleet(f"model {model!r}", "model")
        return fleet

    async def leader_of(self, fleet: str) -> FleetLeader:
        """Raises NotLeader, which says who is."""
        leader = self._leaders.get(fleet)
        if leader is None:
            raise await self.not_leader(fleet)
        return leader

    async def not_leader(self, fleet: str) -> NotLeader:
        election = Election(self._deps.client, keys.fleet_election(fleet), self.member_id)
        try:
            holder = await election.leader()
        except PASSING:
            holder = None
        address = self._deps.views.scheduler_address(holder.candidate_id) if holder else ""
        return NotLeader(fleet, address)

    async def run_progress(self, run_id: str) -> Progress:
        """Live where this scheduler leads the run's fleet; of an ended run what its record says.
        Raises NoRun, NotLeader, StateUnavailable."""
        for leader in self._leaders.values():
            progress = leader.runs.progress(run_id)
            if progress is not None:
                return progress
        try:
            entry = await self._deps.client.get(keys.run(run_id))
        except PASSING as error:
            raise StateUnavailable from error
        if entry is None:
            raise NoRun(run_id)
        record = _run_record(entry.value)
        if record.ended_at is None and record.fleet not in self._leaders:
            raise await self.not_leader(record.fleet)
        return _recorded_progress(record, self._leaders.get(record.fleet))

    @property
    def views(self) -> ClusterViews:
        return self._deps.views

    @property
    def clock(self) -> Clock:
        return self._deps.clock

    # Roles

    async def _stand_for_fleet(self, fleet: str) -> None:
        async def lead(leadership: Leadership) -> None:
            await self._lead_fleet(fleet, leadership)

        await self._serve_role(keys.fleet_election(fleet), lead)

    async def _serve_role(self, name: str, work: Callable[[Leadership], Awaitable[None]]) -> None:
        while True:
            election = Election(self._deps.client, name, self.member_id, ttl_s=self._ttl_s)
            async with await election.campaign() as leadership:
                log.info("leads", extra={"role": name, "epoch": leadership.epoch})
                self._leads.labels(name).set(1)
                try:
                    await work(leadership)
                except Exception:
                    log.exception("the work of a role failed", extra={"role": name})
                finally:
                    self._leads.labels(name).set(0)
            log.warning("leads no more", extra={"role": name, "epoch": leadership.epoch})
            await self._deps.clock.sleep(RESTART_S)

    async def _lead_fleet(self, fleet: str, leadership: Leadership) -> None:
        leader = FleetLeader(fleet, leadership, self._deps)
        try:
            await leader.take_over()
        except LeadershipLost:
            return
        self._leaders[fleet] = leader
        try:
            await leader.run()
        finally:
            del self._leaders[fleet]
            leader.desk.close(NotLeader(fleet, ""))

    async def _lead_intake(self, leadership: Leadership) -> None:
        writer = GuardedWriter(self._deps.client, leadership, self._deps.clock)
        intake = Intake(
            writer, self._deps.views, self._deps.routers, self._deps.clock, self._intake
        )
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(intake.run())
                await leadership.lost.wait()
                raise LeadershipLost("intake is led by another scheduler now")
        except* LeadershipLost:
            pass


def _run_record(value: bytes) -> RunRecord:
    return msgspec.json.decode(value, type=RunRecord)


def _recorded_progress(record: RunRecord, leader: FleetLeader | None) -> Progress:
    ended_at = record.ended_at
    return Progress(
        run_id=record.id,
        batch_id=record.batch_id,
        status=("failed" if record.error else record.outcome) if ended_at else "in_progress",
        total=record.total,
        completed=record.completed,
        failed=record.failed,
        running=0,
        ledger=record.ledger,
        elapsed_s=max(0.0, (ended_at or record.started_at) - record.started_at),
        eta_s=0.0,
        epoch=leader.epoch if leader else 0,
    )
