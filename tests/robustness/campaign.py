"""Rounds of batches with faults in them, each checked against the model when it is over."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from uuid import uuid4

from libs.testing.waiting import eventually
from tests.robustness.cluster import Cluster
from tests.robustness.faults import Fault, Kind, draw_round
from tests.robustness.history import Expected, History, Injected, Polled, Unclear
from tests.robustness.model import TERMINAL, Broken, Violation, check
from tests.robustness.recorder import Recorder
from tests.robustness.work import Work

UP_WITHIN_S = 60.0
SUBMIT_WITHIN_S = 60.0
DAY, HOUR = "24h", "1h"
"""Completion windows: no clock here jumps by a day."""


@dataclass(frozen=True, slots=True)
class Settings:
    """within_s: from a batch's promise to its end, whatever was injected."""

    seed: int
    within_s: float = 90.0
    first_round: int = 1


@dataclass(slots=True)
class Injection:
    """resume_s: until the next line was recorded (or a batch ended); None if none was any more."""

    round: int
    fault: Fault
    resume_s: float | None
    violations: list[Violation] = field(default_factory=list)


@dataclass(slots=True)
class Report:
    injections: list[Injection] = field(default_factory=list)
    rounds: int = 0
    lines: int = 0
    ends: Counter[str] = field(default_factory=Counter)
    """How the batches ended."""
    missed: int = 0
    """Faults whose batches had ended before; not counted."""
    undisturbed: list[tuple[int, Violation]] = field(default_factory=list)
    """Violations of rounds in which nothing was injected, with the round."""

    @property
    def violations(self) -> list[tuple[int, Violation]]:
        """With the round."""
        found = [(each.round, v) for each in self.injections for v in each.violations]
        return [*self.undisturbed, *found]


@dataclass(frozen=True, slots=True)
class Task:
    """A batch to be run, and the answers it must give. cancel_at: share of its lines that are
    recorded when a cancel is asked for. window: of completion; the shortest one can expire."""

    work: Work
    answers: dict[str, str | None]
    cancel_at: float | None = None
    window: str = DAY


MakeTasks = Callable[[random.Random], Sequence[Task]]


class Campaign:
    """One cluster's. `run` may be called again: rounds go on counting."""

    def __init__(
        self,
        cluster: Cluster,
        settings: Settings,
        make_tasks: MakeTasks,
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.report = Report()
        self._cluster = cluster
        self._settings = settings
        self._make_tasks = make_tasks
        self._say = say
        self._round = settings.first_round - 1
        self._known: set[str] | None = None
        """Batches that the cluster had, or promised."""

    async def run(self, faults: int) -> Report:
        """At least so many faults, unless a round broke a rule: then its cluster is left as it
        was found."""
        while len(self.report.injections) < faults and not self.report.violations:
            self._round += 1
            drawn = draw_round(self._settings.seed, self._round, self._cluster.ground)
            await self.round(drawn)
        return self.report

    async def round(self, faults: Sequence[Fault]) -> History:
        """One round with these faults."""
        rng = random.Random(f"{self._settings.seed}/{self._round}/work")
        tasks = self._make_tasks(rng)
        recorder = Recorder(self._cluster.http, self._cluster.grpc, len(tasks))
        lines = sum(len(task.answers) for task in tasks)
        known = await recorder.batches() if self._known is None else self._known
        try:
            async with asyncio.TaskGroup() as group:
                for task in tasks:
                    group.create_task(self._batch(recorder, task))
                group.create_task(self._inject(recorder, faults, lines))
            recorder.history.ended_at = time.monotonic()
            violations = check(recorder.history)
            violations += await self._afterwards(recorder, known)
        finally:
            await recorder.aclose()
        self._book(recorder.history, violations, lines)
        return recorder.history

    async def _batch(self, recorder: Recorder, task: Task) -> None:
        """One batch to its end, or to the end of patience; the model tells which."""
        try:
            await self._submit_and_watch(recorder, task)
        finally:
            await recorder.settle()

    async def _submit_and_watch(self, recorder: Recorder, task: Task) -> None:
        settings = self._settings
        expected = Expected(task.answers, settings.within_s, expires=task.window == HOUR)
        try:
            async with asyncio.timeout(SUBMIT_WITHIN_S):
                batch = await recorder.submit(task.work.content, uuid4().hex, expected, task.window)
        except TimeoutError:
            await recorder.note(Unclear(time.monotonic(), "POST /v1/batches", "never"))
            return
        if task.cancel_at is None:
            await self._patiently(recorder.watch(batch))
        else:
            cancel = recorder.cancel(batch, task.cancel_at)
            await self._patiently(_both(recorder.watch(batch), cancel))

    # ---- faults

    async def _inject(self, recorder: Recorder, faults: Sequence[Fault], lines: int) -> None:
        for fault in faults:
            if fault.progress >= 0:
                wanted = fault.progress * lines
                await self._or_over(recorder, partial(_recorded, recorder, wanted, lines))
            await asyncio.sleep(fault.delay_s)
            if not recorder.at_work:
                self.report.missed += 1
                continue
            # What was recorded before must not count as what came after.
            await self._patiently(recorder.look_at_all())
            self._say(f"round {self._round}: {fault}")
            at = time.monotonic()
            await recorder.note(Injected(at, fault))
            await self._perform(fault)
            await self._or_over(recorder, partial(_resumed, recorder, at))
            await self._patiently(recorder.read_again())

    async def _patiently(self, asking: Awaitable[None]) -> None:
        """No longer than a batch may take: that nobody answers shows in the batches."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._settings.within_s):
                await asking

    async def _or_over(self, recorder: Recorder, holds: Callable[[], bool]) -> None:
        """Returns once it holds, or the round's batches have ended or were given up."""
        await self._patiently(recorder.until(lambda: holds() or not recorder.at_work))

    async def _perform(self, fault: Fault) -> None:
        cluster, member = self._cluster, fault.members[0]
        match fault.kind:
            case Kind.KILL | Kind.KILL_SEVERAL | Kind.KILL_ALL:
                cluster.kill(fault.members)
            case Kind.TERMINATE:
                cluster.terminate(member)
            case Kind.PAUSE | Kind.QUORUM:
                await cluster.pause(fault.members, fault.lasts_s)
            case Kind.CUT:
                cluster.cut(member)
            case Kind.PARTITION:
                await cluster.partition(member, fault.lasts_s)
            case Kind.DISK_FULL:
                await cluster.fill_disk(member, fault.lasts_s)
            case Kind.CLOCK | Kind.EXPIRY:
                await cluster.jump(fault.members, fault.shift_s, fault.lasts_s)
            case Kind.FROZEN | Kind.STORE_ERRORS | Kind.STORE_SLOW | Kind.STORE_CUT:
                await cluster.break_store(fault.kind, fault.lasts_s)

    # ---- what came of it

    async def _afterwards(self, recorder: Recorder, known: set[str]) -> list[Violation]:
        """All processes are back, and no batch is there that nobody was promised."""
        try:
            async with asyncio.timeout(UP_WITHIN_S):
                await eventually(self._cluster.all_up, within_s=UP_WITHIN_S)
                extra = await recorder.batches() - known - recorder.promised
        except TimeoutError:
            return [Violation(Broken.HUNG, "", "the cluster did not come back")]
        self._known = known | extra | recorder.promised
        return [Violation(Broken.DOUBLED, batch, "nobody was promised it") for batch in extra]

    def _book(self, history: History, violations: list[Violation], lines: int) -> None:
        report = self.report
        report.rounds += 1
        report.lines += lines
        last = {event.batch: event.status for event in history.events if isinstance(event, Polled)}
        report.ends.update(last.values())
        injected = [event for event in history.events if isinstance(event, Injected)]
        found = [Injection(self._round, e.fault, resume_s(history, e.at)) for e in injected]
        report.injections += found
        if found:
            # The last fault before the round's end is the nearest suspect; all of them are told.
            found[-1].violations.extend(violations)
        else:
            report.undisturbed += [(self._round, violation) for violation in violations]


def resume_s(history: History, at: float) -> float | None:
    """From `at` to the first poll that counts more lines than any before it, or an end."""
    counted: dict[str, int] = {}
    for event in history.events:
        if not isinstance(event, Polled):
            continue
        count, before = event.completed + event.failed, counted.get(event.batch, 0)
        counted[event.batch] = max(before, count)
        if event.at > at and (count > before or event.status in TERMINAL):
            return event.at - at
    return None


async def _both(*asking: Coroutine[Any, Any, None]) -> None:
    async with asyncio.TaskGroup() as group:
        for each in asking:
            group.create_task(each)


def _recorded(recorder: Recorder, wanted: float, lines: int) -> bool:
    """So many lines, once every batch has been made."""
    return recorder.all_made and recorder.recorded >= min(wanted, lines - 1)


def _resumed(recorder: Recorder, at: float) -> bool:
    return resume_s(recorder.history, at) is not None
