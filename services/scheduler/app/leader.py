"""The leader of one fleet: grants its steps, executes its runs, keeps its ledger."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from libs.clock import Clock
from libs.cluster.client import EtcdClient
from libs.cluster.election import Leadership
from libs.objects import ObjectStore
from libs.obs import METRICS, Metrics
from libs.records import keys
from libs.records.batch import RunRecord
from services.scheduler.app.desk import GrantDesk
from services.scheduler.app.executor import RunContext, RunSettings
from services.scheduler.app.ledger_keeper import LedgerKeeper
from services.scheduler.app.runs import RunManager
from services.scheduler.app.servers import ServerWatcher
from services.scheduler.app.storage import RunStorage
from services.scheduler.app.views import ClusterViews
from services.scheduler.app.writer import GuardedWriter, LeadershipLost
from services.scheduler.core.fleet import FleetLimits
from services.scheduler.ports import BatchRouters, ModelServers

TICK_S = 1.0


@dataclass(frozen=True, slots=True)
class Deps:
    """What a scheduler's leaders are made of."""

    client: EtcdClient
    objects: ObjectStore
    views: ClusterViews
    routers: BatchRouters
    servers: ModelServers
    clock: Clock
    new_file_id: Callable[[], str]
    limits: FleetLimits = field(default_factory=FleetLimits)
    runs: RunSettings = field(default_factory=RunSettings)
    metrics: Metrics = METRICS


class FleetLeader:
    def __init__(self, fleet: str, leadership: Leadership, deps: Deps) -> None:
        self.fleet = fleet
        self.epoch = leadership.epoch
        self.desk = GrantDesk(
            fleet,
            leadership.epoch,
            deps.clock,
            deps.limits,
            deps.metrics,
            may_grant=lambda: leadership.held,
        )
        self._leadership = leadership
        self._clock = deps.clock
        self._views = deps.views
        self._writer = GuardedWriter(deps.client, leadership, deps.clock)
        self.keeper = LedgerKeeper(fleet, self._writer, deps.clock)
        self._watcher = ServerWatcher(
            fleet,
            deps.views,
            deps.servers,
            self.desk,
            self.keeper.clock,
            self.keeper.alive,
            deps.clock,
        )
        self.runs = RunManager(
            RunContext(
                fleet=fleet,
                writer=self._writer,
                storage=RunStorage(deps.objects, leadership, deps.clock),
                routers=deps.routers,
                views=deps.views,
                desk=self.desk,
                keeper=self.keeper,
                clock=deps.clock,
                new_file_id=deps.new_file_id,
                settings=deps.runs,
                metrics=deps.metrics,
            )
        )

    async def run(self) -> None:
        """Until leadership is lost or the task is cancelled; then nothing of it is left running."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._until_lost())
                group.create_task(self._watcher.run())
                group.create_task(self._tick())
                group.create_task(self.keeper.run())
                group.create_task(self.runs.run())
        except* LeadershipLost:
            pass

    async def take_over(self) -> None:
        """Before `run`: the book of the leader before, without the runs that ended since. Raises
        LeadershipLost."""
        self.desk.expect(self._views.model_servers(self.fleet))
        await self.keeper.load()
        for run_id in self.keeper.booked_runs():
            record = await self._writer.read(keys.run(run_id), RunRecord)
            if record is None or record.ended_at is not None:
                self.keeper.close_run(run_id)

    async def _until_lost(self) -> None:
        await self._leadership.lost.wait()
        raise LeadershipLost(f"the fleet {self.fleet} is led by another scheduler now")

    async def _tick(self) -> None:
        while True:
            await self._clock.sleep(TICK_S)
            self.desk.tick()
