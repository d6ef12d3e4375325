"""Books step reports and writes the fleet's book; what is written is acknowledged.

Reports wait for a common write: one is in flight at a time and takes everything booked until it
began, so that the load on etcd does not grow with the number of steps.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Sequence

from libs.clock import Clock
from libs.records import keys
from libs.records.book import FleetBook, RunUseRecord
from services.scheduler.app.writer import GuardedWriter, put_record
from services.scheduler.core.ledger import Book, Busy, Clocks, Ledger, RunUse, StepUse

log = logging.getLogger(__name__)

WRITE_EVERY_S = 0.1
"""Least time between two writes of the book."""
IDLE_WRITE_S = 1.0
"""Idle time alone is written this often: nobody waits for it."""


class LedgerKeeper:
    """`load` first, then `run` in a task of the leader."""

    def __init__(self, fleet: str, writer: GuardedWriter, clock: Clock) -> None:
        self._key = keys.fleet_book(fleet)
        self._fleet = fleet
        self._writer = writer
        self._clock = clock
        self._ledger = Ledger()
        self._active: list[str] = []
        self._wake = asyncio.Event()
        self._to_write = False

    async def load(self) -> None:
        """Takes over what the leader before had written."""
        record = await self._writer.read(self._key, FleetBook)
        if record is not None:
            self._ledger = Ledger(_book(record))

    async def run(self) -> None:
        while True:
            try:
                async with asyncio.timeout(IDLE_WRITE_S):
                    await self._wake.wait()
            except TimeoutError:
                pass
            self._wake.clear()
            if self._ledger.dirty or self._to_write:
                await self._write()
                await self._clock.sleep(WRITE_EVERY_S)

    async def _write(self) -> None:
        self._to_write = False
        book = self._ledger.snapshot()
        await self._writer.commit([put_record(self._key, self._record(book))])
        self._ledger.written(book)

    def _record(self, book: Book) -> FleetBook:
        return FleetBook(
            fleet=self._fleet,
            epoch=self._writer.epoch,
            booked=dict(book.booked),
            clocks={inc: (clocks.uptime_s, clocks.busy_s) for inc, clocks in book.clocks.items()},
            busy={inc: (busy.reported, busy.charged) for inc, busy in book.busy.items()},
            runs={run_id: _use_record(use) for run_id, use in book.runs.items()},
        )

    # Runs

    def booked_runs(self) -> list[str]:
        """Runs that the book has sums of."""
        return self._ledger.runs()

    @property
    def active_runs(self) -> int:
        """Runs that execute now."""
        return len(self._active)

    def open_run(self, run_id: str) -> None:
        self._ledger.open_run(run_id)
        if run_id not in self._active:
            self._active.append(run_id)

    def pause_run(self, run_id: str) -> None:
        """Its steps are done: no idle time is charged to it any more, late reports are."""
        if run_id in self._active:
            self._active.remove(run_id)

    def close_run(self, run_id: str) -> None:
        self.pause_run(run_id)
        self._ledger.close_run(run_id)

    def use_of(self, run_id: str) -> RunUse:
        return self._ledger.use_of(run_id)

    # Reports

    def book(
        self, incarnation: str, steps: Sequence[tuple[int, StepUse]], acknowledged: int
    ) -> list[bool]:
        """For each step whether it is new; written soon. Those up to `acknowledged` a leader has
        booked for good. Steps with a gap before them are not booked: the server believes that it
        sent the others to this leader, and will learn better."""
        self._ledger.resume(incarnation, acknowledged)
        if steps and steps[0][0] > self._ledger.seen(incarnation) + 1:
            return [False] * len(steps)
        fresh = [self._ledger.book(incarnation, sequence, use) for sequence, use in steps]
        if self._ledger.seen(incarnation) > self._ledger.acknowledged(incarnation):
            self._to_write = True
            self._wake.set()
        return fresh

    def clock(self, incarnation: str, clocks: Clocks) -> None:
        self._ledger.clock(incarnation, clocks, self._active)

    def alive(self, incarnations: Collection[str]) -> None:
        """The servers' lives that there are now; the others will report no more, or late."""
        unreported_s = self._ledger.alive(incarnations, self._active)
        if unreported_s > 0:
            fields = {"fleet": self._fleet, "unreported_s": round(unreported_s, 3)}
            log.warning("a server is gone with work it had not reported", extra=fields)

    def acknowledged(self, incarnation: str) -> int:
        """The sequence up to which all is booked and written: the server may forget so much."""
        return self._ledger.acknowledged(incarnation)


def _book(record: FleetBook) -> Book:
    return Book(
        booked=record.booked,
        clocks={inc: Clocks(uptime, busy) for inc, (uptime, busy) in record.clocks.items()},
        busy={inc: Busy(reported, charged) for inc, (reported, charged) in record.busy.items()},
        runs={run_id: _use(use) for run_id, use in record.runs.items()},
    )


def _use(record: RunUseRecord) -> RunUse:
    return RunUse(
        prompt_tokens=record.prompt_tokens,
        cached_tokens=record.cached_tokens,
        completion_tokens=record.completion_tokens,
        reasoning_tokens=record.reasoning_tokens,
        busy_engine_s=record.busy_engine_s,
        idle_engine_s=record.idle_engine_s,
        self_placed_steps=record.self_placed_steps,
    )


def _use_record(use: RunUse) -> RunUseRecord:
    return RunUseRecord(
        prompt_tokens=use.prompt_tokens,
        cached_tokens=use.cached_tokens,
        completion_tokens=use.completion_tokens,
        reasoning_tokens=use.reasoning_tokens,
        busy_engine_s=use.busy_engine_s,
        idle_engine_s=use.idle_engine_s,
        self_placed_steps=use.self_placed_steps,
    )
