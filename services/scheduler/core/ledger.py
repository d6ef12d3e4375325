"""What a fleet's engine time was spent on, by the reports of every execution of a step.

A step report is booked once, by (incarnation, sequence). Busy time is the sum of the steps' shares.
Idle time is what the servers were up and not busy while runs went on, split evenly over these runs:
it was reserved for them. What a server had computed and not reported when it died is busy time of
the runs that go on: it was computed for them, or beside them, and is paid for. All that survives a
change of leader as one `Book`; reports that were booked but not yet in a written book come again,
because only `written` ones are acknowledged.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from services.scheduler.core.watermark import Watermark

_INCARNATIONS = 256
"""Servers' lives that are remembered; a server is long gone when its is dropped."""


@dataclass(frozen=True, slots=True)
class StepUse:
    """What one finished step used; engine seconds are its measured share of engine steps."""

    run_id: str
    """Empty = a single request: booked, and charged to no run."""
    engine_s: float
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    reasoning_tokens: int = 0
    self_placed: bool = False


@dataclass(slots=True)
class RunUse:
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    reasoning_tokens: int = 0
    busy_engine_s: float = 0.0
    idle_engine_s: float = 0.0
    self_placed_steps: int = 0

    @property
    def computed_tokens(self) -> int:
        """Fed or sampled; what was found cached was not computed."""
        return self.prompt_tokens - self.cached_tokens + self.completion_tokens

    def add(self, use: StepUse) -> None:
        self.prompt_tokens += use.prompt_tokens
        self.cached_tokens += use.cached_tokens
        self.completion_tokens += use.completion_tokens
        self.reasoning_tokens += use.reasoning_tokens
        self.busy_engine_s += use.engine_s
        self.self_placed_steps += use.self_placed


@dataclass(frozen=True, slots=True)
class Clocks:
    """Of a server since its start, seconds; uptime >= busy."""

    uptime_s: float
    busy_s: float


@dataclass(frozen=True, slots=True)
class Busy:
    """Of a server's busy time, seconds; charged >= reported."""

    reported: float = 0.0
    """The shares of its reported steps."""
    charged: float = 0.0
    """Booked so far: what was reported, and after its death what never will be."""


@dataclass(frozen=True, slots=True)
class Book:
    """All that a new leader must know; a snapshot that shares nothing with the ledger."""

    booked: Mapping[str, int] = field(default_factory=dict)
    """Incarnation -> every report up to this sequence is in `runs`."""
    clocks: Mapping[str, Clocks] = field(default_factory=dict)
    busy: Mapping[str, Busy] = field(default_factory=dict)
    runs: Mapping[str, RunUse] = field(default_factory=dict)


class Ledger:
    def __init__(self, book: Book | None = None) -> None:
        book = book or Book()
        self._runs: dict[str, RunUse] = {run: replace(use) for run, use in book.runs.items()}
        self._clocks: dict[str, Clocks] = dict(book.clocks)
        self._busy: dict[str, Busy] = dict(book.busy)
        self._marks: OrderedDict[str, Watermark] = OrderedDict(
            (incarnation, Watermark(level)) for incarnation, level in book.booked.items()
        )
        self._written: dict[str, int] = dict(book.booked)
        self.dirty = False
        """Something is not in the written book yet."""

    def open_run(self, run_id: str) -> None:
        """Reports and idle time are charged to it from now on."""
        self._runs.setdefault(run_id, RunUse())

    def close_run(self, run_id: str) -> None:
        """Its totals are recorded elsewhere; a late report for it is charged to nobody."""
        if self._runs.pop(run_id, None) is not None:
            self.dirty = True

    def runs(self) -> list[str]:
        """The open ones."""
        return list(self._runs)

    def use_of(self, run_id: str) -> RunUse:
        return replace(self._runs.get(run_id) or RunUse())

    def resume(self, incarnation: str, acknowledged: int) -> None:
        """A leader has acknowledged a server's reports up to this one: they are booked."""
        self._mark(incarnation).raise_to(acknowledged)

    def seen(self, incarnation: str) -> int:
        """Every report up to this one is booked."""
        return self._mark(incarnation).level

    def book(self, incarnation: str, sequence: int, use: StepUse) -> bool:
        """False when it was booked before."""
        if not self._mark(incarnation).add(sequence):
            return False
        engine_s = self._charge(incarnation, use.engine_s)
        run = self._runs.get(use.run_id)
        if run is not None:
            run.add(replace(use, engine_s=engine_s))
        self.dirty = True
        return True

    def _charge(self, incarnation: str, engine_s: float) -> float:
        """The part of a reported share that was not charged when its server was held to be dead."""
        before = self._busy.get(incarnation, Busy())
        reported = before.reported + engine_s
        self._busy[incarnation] = Busy(reported, max(before.charged, reported))
        return self._busy[incarnation].charged - before.charged

    def clock(self, incarnation: str, now: Clocks, active: Collection[str]) -> float:
        """A server's clocks advanced; charges the idle part to the runs in `active`, which must be
        open. Returns it in seconds. The first sight of an incarnation charges nothing.

        A server counts an engine step as busy when the step ends. A clock read within one makes its
        first part look idle, and the next read then gives that back: the part is negative, and only
        the sum over reads is the idle time.
        """
        before = self._clocks.get(incarnation)
        if before is not None and now.uptime_s <= before.uptime_s:
            return 0.0  # Older than what is known: two messages crossed.
        self._mark(incarnation)
        self._clocks[incarnation] = now
        if before is None:
            # Steps that it ran before are booked, or belong to a time nobody kept a book of.
            self._busy.setdefault(incarnation, Busy(now.busy_s, now.busy_s))
        if before is None or not active:
            return 0.0
        idle = (now.uptime_s - before.uptime_s) - (now.busy_s - before.busy_s)
        for run_id in active:
            run = self._runs[run_id]
            run.idle_engine_s = max(0.0, run.idle_engine_s + idle / len(active))
        self.dirty = self.dirty or idle != 0
        return idle

    def alive(self, incarnations: Collection[str], active: Collection[str]) -> float:
        """These servers live; charges what the others had computed and not reported to the runs in
        `active`, which must be open, evenly. Returns it in seconds. One that was held to be dead
        may still report: its shares count from where they exceed what was charged."""
        unreported = 0.0
        for incarnation in self._clocks.keys() - set(incarnations):
            busy = self._busy.get(incarnation, Busy())
            charged = max(busy.charged, self._clocks[incarnation].busy_s)
            self._busy[incarnation] = replace(busy, charged=charged)
            unreported += charged - busy.charged
        for run_id in active:
            self._runs[run_id].busy_engine_s += unreported / len(active)
        self.dirty = self.dirty or unreported > 0
        return unreported

    def acknowledged(self, incarnation: str) -> int:
        """Every report up to this sequence is in a written book."""
        return self._written.get(incarnation, 0)

    def snapshot(self) -> Book:
        """What to write now; then call `written` with it."""
        self.dirty = False
        return Book(
            booked={incarnation: mark.level for incarnation, mark in self._marks.items()},
            clocks=dict(self._clocks),
            busy=dict(self._busy),
            runs={run: replace(use) for run, use in self._runs.items()},
        )

    def written(self, book: Book) -> None:
        self._written = dict(book.booked)

    def _mark(self, incarnation: str) -> Watermark:
        mark = self._marks.setdefault(incarnation, Watermark())
        self._marks.move_to_end(incarnation)
        while len(self._marks) > _INCARNATIONS:
            oldest, _ = self._marks.popitem(last=False)
            self._clocks.pop(oldest, None)
            self._busy.pop(oldest, None)
        return mark
