"""Executes one run: hands lines to routers, records what they answer, ends the run.

One task owns the run's state. Stream tasks only put events in its queue; writing a segment goes on
beside it. Everything that must outlive this process is in the run's log.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from libs.clock import Clock, SteadyClock
from libs.errors import ImpalaError
from libs.obs import METRICS, Metrics
from libs.records.batch import LedgerRecord
from services.scheduler.app.desk import GrantDesk
from services.scheduler.app.finalizer import CANCELLED, COMPLETED, EXPIRED, Finalizer
from services.scheduler.app.input import RunInput
from services.scheduler.app.ledger_keeper import LedgerKeeper
from services.scheduler.app.run_log import FlushPolicy, RunLog
from services.scheduler.app.storage import RunBroken, RunStorage
from services.scheduler.app.views import ClusterViews
from services.scheduler.app.writer import GuardedWriter, LeadershipLost
from services.scheduler.core.error_line import ENGINE, error_line
from services.scheduler.core.ledger import RunUse
from services.scheduler.core.run import Line, Outcome, RunLimits, RunState, Verdict
from services.scheduler.core.usage import NO_USAGE
from services.scheduler.ports import BatchRouters, ExecuteAsk, LineAnswer, LineStream

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RunSettings:
    flush: FlushPolicy = field(default_factory=FlushPolicy)
    limits: RunLimits = field(default_factory=RunLimits)
    min_window: int = 4
    max_window: int = 512
    """Lines handed out at once: the run's share of twice what the fleet's servers take, within
    these."""
    stop_within_s: float = 10.0
    """What a cancelled or expired run waits for the answers to its handed-out lines."""
    settle_within_s: float = 10.0
    """What a finished run waits for the last step reports."""
    look_every_s: float = 0.25
    """How often a quiet run looks for routers, servers, a cancel and its expiry."""
    reopen_after_s: float = 0.5
    """Rest before a router whose stream broke is tried again."""


@dataclass(frozen=True, slots=True)
class RunContext:
    """What the executors of one leader share."""

    fleet: str
    writer: GuardedWriter
    storage: RunStorage
    routers: BatchRouters
    views: ClusterViews
    desk: GrantDesk
    keeper: LedgerKeeper
    clock: Clock
    new_file_id: Callable[[], str]
    settings: RunSettings
    metrics: Metrics = METRICS


@dataclass(frozen=True, slots=True)
class Progress:
    run_id: str
    batch_id: str
    status: str
    total: int
    completed: int
    failed: int
    running: int
    ledger: LedgerRecord
    elapsed_s: float
    eta_s: float
    """0 = not known."""
    epoch: int


@dataclass(frozen=True, slots=True)
class _Answers:
    worker: str
    answers: Sequence[LineAnswer]


@dataclass(frozen=True, slots=True)
class _Lost:
    worker: str


class RunExecutor:
    def __init__(self, run: RunLog, context: RunContext) -> None:
        self._run = run
        self._context = context
        self._settings = context.settings
        self._clock = context.clock
        self._steady = SteadyClock(context.clock)
        record = run.record
        self._input = RunInput(
            context.storage,
            record.input_object,
            record.index_object,
            record.total,
            record.index_digest,
        )
        self._state: RunState | None = None
        self._events: asyncio.Queue[_Answers | _Lost] = asyncio.Queue()
        self._streams: dict[str, LineStream] = {}
        self._workers: dict[str, asyncio.Task[None]] = {}
        self._reopen_at: dict[str, float] = {}
        self._broken: set[str] = set()
        """Routers that have answered nothing since their stream broke."""
        self._flushing: asyncio.Task[None] | None = None
        self._fed = 0
        self._stop_by = 0.0
        self._outcome = COMPLETED
        self._lines = context.metrics.counter(
            "impala_scheduler_run_lines", "Answers of lines, by what became of them.", ["verdict"]
        )

    async def run(self) -> None:
        """To the run's end. Raises LeadershipLost; RunBroken when the run can never end well."""
        self._context.keeper.open_run(self._run.record.id)
        if not self._run.record.outcome:
            await self._execute()
            await self._run.begin_finalizing(
                self._outcome,
                self._context.new_file_id(),
                self._context.new_file_id(),
                self._now_s(),
            )
        await self._finish()

    async def fail(self, why: str) -> None:
        """Ends a broken run with the lines that can still be read. Raises LeadershipLost; RunBroken
        when there can be no files."""
        await self._run.begin_failing(
            why,
            self._context.new_file_id(),
            self._context.new_file_id(),
            self._now_s(),
        )
        await self._finish()

    async def _finish(self) -> None:
        record = self._run.record
        await self._settle()
        self._context.keeper.pause_run(record.id)
        await Finalizer(self._run, self._input, self._context.storage, self._clock).finish(
            self._context.keeper.use_of(record.id), self._cancel_at
        )
        self._context.keeper.close_run(record.id)

    def _cancel_at(self) -> int | None:
        asked = self._context.views.cancels.get(self._run.batch.id)
        return None if asked is None else int(asked)

    def progress(self) -> Progress:
        """What is known now: recorded or about to be."""
        record, state = self._run.record, self._state
        completed = state.completed if state else record.completed
        failed = state.failed if state else record.failed
        elapsed = max(0.0, self._steady.time() - record.started_at)
        answered = completed + failed
        left = record.total - answered
        cancelling = self._context.views.cancels.get(record.batch_id) is not None
        return Progress(
            run_id=record.id,
            batch_id=record.batch_id,
            status="cancelling" if cancelling else self._run.batch.status,
            total=record.total,
            completed=completed,
            failed=failed,
            running=state.running if state else 0,
            ledger=self._run.ledger(self._context.keeper.use_of(record.id)),
            elapsed_s=elapsed,
            eta_s=elapsed / answered * left if answered and left else 0.0,
            epoch=self._context.writer.epoch,
        )

    # Execution

    async def _execute(self) -> None:
        await self._input.check()
        done, completed, failed = await self._run.resume()
        record = self._run.record
        if (completed, failed) != (record.completed, record.failed):
            raise RunBroken(
                "The run's recorded results are damaged.",
                f"The record counts {record.completed} + {record.failed} lines, the segments "
                f"{completed} + {failed}.",
            )
        state = self._state = RunState(
            record.total, done, completed, failed, self._settings.limits, record.losses
        )
        try:
            async with asyncio.TaskGroup() as group:
                await self._loop(state, group)
                for worker in self._workers.values():
                    worker.cancel()
        except BaseExceptionGroup as failures:
            raise _one_of(failures) from failures
        await self._run.flush(self._use(), {})

    async def _loop(self, state: RunState, group: asyncio.TaskGroup) -> None:
        while not state.finished:
            now = self._clock.now()
            self._look_for_end(state, now)
            self._look_for_routers(group, now)
            if state.wants_feed():
                lines, last = await self._input.window(self._fed)
                self._fed += len(lines)
                state.feed(lines, last)
            self._hand_out(state, now)
            self._flush_when_due(state, group, now)
            for event in await self._next_events(state, now):
                await self._handle(state, event)

    def _look_for_end(self, state: RunState, now: float) -> None:
        if state.stopping:
            if now >= self._stop_by:
                state.abandon()
            return
        batch = self._run.batch
        if self._context.views.cancels.get(batch.id) is not None:
            self._outcome = CANCELLED
        elif batch.expires_at is not None and self._clock.time() >= batch.expires_at:
            self._outcome = EXPIRED
        else:
            return
        log.info("run stops", extra={"run": self._run.record.id, "outcome": self._outcome})
        self._stop_by = now + self._settings.stop_within_s
        for worker, lines in state.stop().items():
            if worker in self._streams:
                self._streams[worker].cancel(lines)

    def _look_for_routers(self, group: asyncio.TaskGroup, now: float) -> None:
        addresses = self._context.views.router_addresses()
        for worker, address in addresses.items():
            if worker not in self._workers and self._reopen_at.get(worker, 0.0) <= now:
                self._workers[worker] = group.create_task(self._stream(worker, address))

    async def _stream(self, worker: str, address: str) -> None:
        """One stream's life; its end is an event, after all its answers."""
        try:
            async with self._context.routers.execute(address, self._ask()) as stream:
                self._streams[worker] = stream
                async for answers in stream.answers():
                    self._broken.discard(worker)
                    self._events.put_nowait(_Answers(worker, answers))
        except ImpalaError as error:
            if worker not in self._broken:  # one that stays away is tried again and again
                self._broken.add(worker)
                fields = {"run": self._run.record.id, "router": worker, "why": error.message}
                log.warning("a router's stream broke", extra=fields)
        finally:
            self._streams.pop(worker, None)
            self._events.put_nowait(_Lost(worker))

    def _ask(self) -> ExecuteAsk:
        record, batch = self._run.record, self._run.batch
        return ExecuteAsk(
            run_id=record.id,
            batch_id=record.batch_id,
            epoch=self._context.writer.epoch,
            fleet=record.fleet,
            account=record.account,
            job_id=record.job_id,
            model=record.model,
            endpoint=record.endpoint,
            input_object=record.input_object,
            deadline_unix_ms=0 if batch.expires_at is None else batch.expires_at * 1000,
        )

    def _hand_out(self, state: RunState, now: float) -> None:
        batches: dict[str, list[Line]] = {}
        for worker, line in state.hand_out(now, self._window(), sorted(self._streams)):
            batches.setdefault(worker, []).append(line)
        for worker, lines in batches.items():
            self._streams[worker].send(lines)

    def _window(self) -> int:
        """0 while no server serves: lines wait here and use up no attempts."""
        capacity = self._context.desk.state.capacity()
        if not capacity:
            return 0
        share = 2 * capacity // max(1, self._context.keeper.active_runs)
        return max(self._settings.min_window, min(self._settings.max_window, share))

    def _flush_when_due(self, state: RunState, group: asyncio.TaskGroup, now: float) -> None:
        if self._flushing is not None and not self._flushing.done():
            return
        flush_at = now if state.losses_unsaved else self._run.flush_at(self._age_s())
        if flush_at is not None and flush_at <= now:
            self._flushing = group.create_task(self._flush(state))

    async def _flush(self, state: RunState) -> None:
        losses = dict(state.losses)
        await self._run.flush(self._use(), losses)
        state.losses_saved(losses)

    async def _next_events(self, state: RunState, now: float) -> list[_Answers | _Lost]:
        """What has come; waits for the first, at most until something else is due."""
        due = [now + self._settings.look_every_s]
        if (retry_at := state.next_retry_at()) is not None and not state.stopping:
            due.append(max(retry_at, now + 0.01))
        try:
            async with asyncio.timeout(min(due) - now):
                events = [await self._events.get()]
        except TimeoutError:
            return []
        while not self._events.empty():
            events.append(self._events.get_nowait())
        return events

    async def _handle(self, state: RunState, event: _Answers | _Lost) -> None:
        now = self._clock.now()
        if isinstance(event, _Lost):
            del self._workers[event.worker]
            self._reopen_at[event.worker] = now + self._settings.reopen_after_s
            for lost, verdict in state.worker_lost(event.worker, now):
                await self._apply(lost, verdict, None)
            return
        for answer in event.answers:
            line = state.handed_out(answer.line)
            verdict = state.answered(
                event.worker, answer.line, answer.outcome, now, answer.retry_after_s
            )
            if line is not None:
                await self._apply(line, verdict, answer)

    async def _apply(self, line: Line, verdict: Verdict, answer: LineAnswer | None) -> None:
        self._lines.labels(verdict.value).inc()
        now = self._clock.now()
        if verdict is Verdict.RECORD and answer is not None:
            kind = "output" if answer.outcome is Outcome.OUTPUT else "error"
            ended_s = self._steady.time()
            self._run.add(
                line.line,
                kind,
                answer.record,
                now,
                usage=answer.usage,
                trace=answer.trace_id,
                began_s=ended_s - answer.total_s,
                ended_s=ended_s,
            )
        elif verdict is Verdict.GAVE_UP:
            custom_id = answer.custom_id if answer else ""
            if not custom_id:
                custom_id = await self._input.custom_id(line)
            why = (answer.reason if answer else "") or "the router's stream broke"
            record = error_line(self._run.record.id, line.line, custom_id, ENGINE, why)
            usage = answer.usage if answer else NO_USAGE
            self._run.add(line.line, "error", record, now, usage=usage)

    # The end

    async def _settle(self) -> None:
        """Reports of the run's last steps may still be on their way; their cost belongs to it."""
        deadline = self._clock.now() + self._settings.settle_within_s
        run_id = self._run.record.id
        while self._context.desk.state.granted_of_run(run_id) and self._clock.now() < deadline:
            await self._clock.sleep(0.05)

    def _now_s(self) -> int:
        """Unix seconds for the records: no run ends before it began, though a clock is set back."""
        return max(int(self._clock.time()), int(self._run.record.started_at))

    def _age_s(self) -> float:
        return self._steady.time() - self._run.record.started_at

    def _use(self) -> RunUse:
        return self._context.keeper.use_of(self._run.record.id)


def _one_of(failures: BaseExceptionGroup[BaseException]) -> BaseException:
    """What a task group's failures mean for the run: the end of leadership before all others."""
    for kind in (LeadershipLost, RunBroken):
        found = failures.subgroup(kind)
        while isinstance(found, BaseExceptionGroup):
            found = found.exceptions[0]  # type: ignore[assignment]
        if found is not None:
            return found
    return failures
