"""All active runs of a fleet: each gets an executor, and a share of the fleet's places."""

from __future__ import annotations

import asyncio
import logging

from services.scheduler.app.executor import Progress, RunContext, RunExecutor
from services.scheduler.app.run_log import RunLog
from services.scheduler.app.storage import RunBroken
from services.scheduler.app.writer import LeadershipLost

log = logging.getLogger(__name__)

MAX_CRASHES = 5
"""Executors of one run that may fail for no known reason before the run is failed."""


class RunManager:
    def __init__(self, context: RunContext) -> None:
        self._context = context
        self._known: set[str] = set()
        self._executors: dict[str, RunExecutor] = {}
        self._active = context.metrics.gauge(
            "impala_scheduler_active_runs", "Runs being executed.", ["fleet"]
        ).labels(context.fleet)

    async def run(self) -> None:
        """While this process leads. Raises LeadershipLost."""
        runs = self._context.views.runs
        async with asyncio.TaskGroup() as group:
            while True:
                version = runs.version
                for run_id in sorted(self._new_runs()):
                    self._known.add(run_id)
                    group.create_task(self._execute(run_id))
                await runs.changed(version)

    def progress(self, run_id: str) -> Progress | None:
        executor = self._executors.get(run_id)
        return None if executor is None else executor.progress()

    def _new_runs(self) -> list[str]:
        return [
            head.id
            for head in self._context.views.runs.all().values()
            if head.fleet == self._context.fleet
            and head.ended_at is None
            and head.id not in self._known
        ]

    async def _execute(self, run_id: str) -> None:
        self._active.inc()
        try:
            for crashes in range(MAX_CRASHES + 1):
                if await self._attempt(run_id, last=crashes == MAX_CRASHES):
                    return
                await self._context.clock.sleep(min(10.0, 0.5 * 2**crashes))
        finally:
            self._executors.pop(run_id, None)
            self._active.dec()

    async def _attempt(self, run_id: str, last: bool) -> bool:
        """True once the run has ended. An unexpected failure is tried again, but not for ever."""
        context = self._context
        run = await RunLog.open(run_id, context.writer, context.storage, context.settings.flush)
        if run is None:
            context.keeper.close_run(run_id)
            return True
        executor = self._executors[run_id] = RunExecutor(run, context)
        try:
            await executor.run()
            return True
        except LeadershipLost:
            raise
        except RunBroken as broken:
            log.error("run broken", extra={"run": run_id, "detail": broken.detail})
            await self._fail(executor, run, broken.why)
            return True
        except Exception:
            log.exception("a run's executor failed", extra={"run": run_id})
            if last:
                why = "The run failed for a reason that only the scheduler's log tells."
                await self._fail(executor, run, why)
            return last

    async def _fail(self, executor: RunExecutor, run: RunLog, why: str) -> None:
        """With the files that can be made; if none can, without any."""
        why = run.record.error or why
        log.error("run failed", extra={"run": run.record.id, "why": why})
        try:
            await executor.fail(why)
        except LeadershipLost:
            raise
        except Exception:
            log.exception("a failed run gets no files", extra={"run": run.record.id})
            use = self._context.keeper.use_of(run.record.id)
            await run.fail(why, use, int(self._context.clock.time()))
            self._context.keeper.close_run(run.record.id)
