"""One run: which lines are handed out to whom, which are answered, which must be tried again.

    not fed -> ready -> handed out -> answered
                 ^          |
                 +- resting <-  (retry asked for, or what ran it was lost)

A retry that is asked for says that the line did not run: no server, no place. A loss says that it
was running when its server died or its worker's stream broke, and so it may be why. Each has its
own limit. A line that kills whatever runs it would else take with it, time after time, the lines
that happen to be in flight beside it, until all of them had used up their tries. So lines with
losses go in ever smaller company of their like: a quarter of the window after the first, a
sixteenth after the second, at last one at a time. The guilty one then meets its limit alone; the
others run in between, and no line that never was in a loss waits for them. A loss is recorded
before its line is handed out again: the next leader goes on counting where this one stopped.
Lines are fed in windows of the index, so memory is the window, what is handed out, and a bit a line
of the file. A line is answered at most once: later answers for it are ignored.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from services.scheduler.core.line_set import LineSet


class Outcome(Enum):
    """How a worker answers a line."""

    OUTPUT = "output"
    ERROR = "error"
    RETRY = "retry"
    """It did not run, and not by its own fault."""
    LOST = "lost"
    """The server that ran it was lost."""
    CANCELLED = "cancelled"


class Verdict(Enum):
    """What an answer means for the run."""

    RECORD = "record"
    """Keep the line's record: it is this line's outcome."""
    RESTING = "resting"
    """It will be handed out again."""
    GAVE_UP = "gave_up"
    """Out of retries: its outcome is an error that the caller writes."""
    DROPPED = "dropped"
    """Given up because the run stops; its outcome is decided at the end."""
    IGNORED = "ignored"
    """Not (or no longer) this worker's line."""


@dataclass(frozen=True, slots=True)
class Line:
    line: int
    """1-based physical line: its identity."""
    offset: int
    length: int
    """Bytes in the input object."""
    prefix_key: bytes = b""


@dataclass(frozen=True, slots=True)
class RunLimits:
    max_attempts: int = 12
    """Hand-outs of one line that end in a retry."""
    max_losses: int = 6
    """Hand-outs of one line that end in a loss. With a full window of 512 the company of the sixth
    is nobody: an innocent line would have to be unlucky alone."""
    max_retry_s: float = 1800.0
    """From a line's first hand-out, or its last loss, until no retry is made any more."""
    backoff_s: float = 0.25
    """Rest after the first attempt; doubles up to `max_backoff_s`."""
    max_backoff_s: float = 30.0
    low_water: int = 64
    """Ready lines below which the next window of the index is wanted."""


@dataclass(slots=True)
class _Attempt:
    line: Line
    first_at: float | None = None
    """When it was handed out first; None before."""
    worker: str = ""
    retries: int = 0
    losses: int = 0


def by_prefix(lines: Iterable[Line]) -> list[Line]:
    """Lines of equal prefix keys side by side, else in the order of the file."""
    groups: dict[bytes, list[Line]] = {}
    for line in lines:
        groups.setdefault(line.prefix_key, []).append(line)
    return [line for group in groups.values() for line in group]


class RunState:
    """`done`: lines whose outcome is recorded already; the state takes it over. `losses`: recorded
    ones of lines without an outcome."""

    def __init__(
        self,
        total: int,
        done: LineSet,
        completed: int = 0,
        failed: int = 0,
        limits: RunLimits | None = None,
        losses: Mapping[int, int] | None = None,
    ) -> None:
        assert completed + failed == len(done)
        self.total = total
        self.completed = completed
        self.failed = failed
        self.limits = limits or RunLimits()
        self.stopping = False
        self._answered = done
        self._ready: deque[Line] = deque()
        self._fed_all = total == 0
        self._out: dict[int, _Attempt] = {}
        self._loads: dict[str, int] = {}
        self._resting: list[tuple[float, int, _Attempt]] = []
        self._suspects: list[tuple[float, int, _Attempt]] = []
        """Those of the resting that were in a loss."""
        self._suspects_out = 0
        self._window = 0
        self._losses = dict(losses or {})
        self._unsaved = False

    # What there is to do

    @property
    def running(self) -> int:
        """Lines handed out and not answered."""
        return len(self._out)

    @property
    def finished(self) -> bool:
        """Every line is answered, or the run stops and nothing is handed out any more."""
        if self._out:
            return False
        waiting = self._ready or self._resting or self._suspects
        return self.stopping or (self._fed_all and not waiting)

    def wants_feed(self) -> bool:
        return not (self._fed_all or self.stopping) and len(self._ready) < self.limits.low_water

    def feed(self, lines: Iterable[Line], last: bool) -> None:
        """The next window of the index, in file order; `last` = there is no further one."""
        self._fed_all = last
        if self.stopping:
            return
        for line in by_prefix(lines):
            if line.line in self._losses:
                attempt = _Attempt(line, losses=self._losses[line.line])
                heapq.heappush(self._suspects, (0.0, line.line, attempt))
            elif line.line not in self._answered:
                self._ready.append(line)

    def next_retry_at(self) -> float | None:
        """When a line may be handed out again that rests; None also while it waits for others."""
        due = [self._resting[0][0]] if self._resting else []
        if self._suspects and self._may_go(self._suspects[0][2]):
            due.append(self._suspects[0][0])
        return min(due, default=None)

    # Losses

    @property
    def losses(self) -> Mapping[int, int]:
        """Line without an outcome -> in how many losses it was; only those that were in one."""
        return self._losses

    @property
    def losses_unsaved(self) -> bool:
        """There are losses that are not recorded; no line that was in one is handed out."""
        return self._unsaved

    def losses_saved(self, saved: Mapping[int, int]) -> None:
        """That many are recorded now."""
        self._unsaved = any(saved.get(line) != times for line, times in self._losses.items())

    # Handing out

    def hand_out(self, now: float, window: int, workers: Sequence[str]) -> list[tuple[str, Line]]:
        """Lines to send now, each with its worker, so that at most `window` are unanswered. Lines
        that rested go first; the worker with the fewest lines gets the next one."""
        sent: list[tuple[str, Line]] = []
        if self.stopping or not workers:
            return sent
        self._window = window
        while len(self._out) < window and (attempt := self._next(now)) is not None:
            worker = min(workers, key=lambda name: (self._loads.get(name, 0), name))
            attempt.worker = worker
            attempt.first_at = now if attempt.first_at is None else attempt.first_at
            self._suspects_out += attempt.losses > 0
            self._out[attempt.line.line] = attempt
            self._loads[worker] = self._loads.get(worker, 0) + 1
            sent.append((worker, attempt.line))
        return sent

    def _next(self, now: float) -> _Attempt | None:
        if self._resting and self._resting[0][0] <= now:
            return heapq.heappop(self._resting)[2]
        if self._suspects and self._suspects[0][0] <= now and self._may_go(self._suspects[0][2]):
            return heapq.heappop(self._suspects)[2]
        return _Attempt(self._ready.popleft()) if self._ready else None

    def _may_go(self, suspect: _Attempt) -> bool:
        """Whether so few others with losses are out as befits how often it was in one."""
        return not self._unsaved and self._suspects_out < max(1, self._window >> 2 * suspect.losses)

    # Answers

    def handed_out(self, line: int) -> Line | None:
        """The line, while it is handed out and not answered."""
        attempt = self._out.get(line)
        return None if attempt is None else attempt.line

    def answered(
        self, worker: str, line: int, outcome: Outcome, now: float, retry_after_s: float = 0.0
    ) -> Verdict:
        attempt = self._out.get(line)
        if attempt is None or attempt.worker != worker:
            return Verdict.IGNORED
        self._take_back(attempt)
        if outcome is Outcome.OUTPUT or outcome is Outcome.ERROR:
            self._count(line, outcome)
            return Verdict.RECORD
        return self._try_again(attempt, outcome is Outcome.LOST, now, retry_after_s)

    def worker_lost(self, worker: str, now: float) -> list[tuple[Line, Verdict]]:
        """Its stream broke: none of its unanswered lines has an outcome. What becomes of each."""
        lost = [attempt for attempt in self._out.values() if attempt.worker == worker]
        for attempt in lost:
            self._take_back(attempt)
        return [(attempt.line, self._try_again(attempt, True, now, 0.0)) for attempt in lost]

    def stop(self) -> Mapping[str, list[int]]:
        """Hands out nothing any more. The lines to give up, by worker; answers still count."""
        self.stopping = True
        self._ready.clear()
        self._resting.clear()
        self._suspects.clear()
        cancel: dict[str, list[int]] = {}
        for attempt in self._out.values():
            cancel.setdefault(attempt.worker, []).append(attempt.line.line)
        return cancel

    def abandon(self) -> None:
        """After `stop`: waits for no answer any more."""
        assert self.stopping
        self._out.clear()
        self._loads.clear()
        self._suspects_out = 0

    def _take_back(self, attempt: _Attempt) -> None:
        del self._out[attempt.line.line]
        self._suspects_out -= attempt.losses > 0
        self._loads[attempt.worker] -= 1
        if not self._loads[attempt.worker]:
            del self._loads[attempt.worker]

    def _count(self, line: int, outcome: Outcome) -> None:
        fresh = self._answered.add(line)
        assert fresh, "a line that has an outcome was handed out"
        self._losses.pop(line, None)
        if outcome is Outcome.OUTPUT:
            self.completed += 1
        else:
            self.failed += 1

    def _try_again(
        self, attempt: _Attempt, lost: bool, now: float, retry_after_s: float
    ) -> Verdict:
        if self.stopping:
            return Verdict.DROPPED
        limits = self.limits
        if lost:
            attempt.losses += 1
            attempt.first_at = now
            self._losses[attempt.line.line] = attempt.losses
            self._unsaved = True
        else:
            attempt.retries += 1
        times = attempt.losses if lost else attempt.retries
        backoff = min(limits.max_backoff_s, limits.backoff_s * 2.0 ** (times - 1))
        rest = max(backoff, min(retry_after_s, limits.max_backoff_s))
        assert attempt.first_at is not None, "a line that was never handed out was answered"
        too_late = now + rest - attempt.first_at > limits.max_retry_s
        if times >= (limits.max_losses if lost else limits.max_attempts) or too_late:
            self._count(attempt.line.line, Outcome.ERROR)
            return Verdict.GAVE_UP
        heap = self._suspects if attempt.losses else self._resting
        heapq.heappush(heap, (now + rest, attempt.line.line, attempt))
        return Verdict.RESTING

    def check_integrity(self) -> None:
        """Raises AssertionError on a state that no sequence of calls may lead to."""
        out = set(self._out)
        ready = [line.line for line in self._ready]
        resting = [attempt.line.line for _, _, attempt in (*self._resting, *self._suspects)]
        places = [*out, *ready, *resting]
        assert len(places) == len(set(places)), "a line is in two places"
        assert not any(line in self._answered for line in places), "an answered line is in work"
        assert self.completed + self.failed == len(self._answered) <= self.total
        assert not any(line in self._answered for line in self._losses)
        loads: dict[str, int] = {}
        for attempt in self._out.values():
            loads[attempt.worker] = loads.get(attempt.worker, 0) + 1
        assert loads == self._loads
        assert self._suspects_out == sum(each.losses > 0 for each in self._out.values())
        if self._fed_all and not self.stopping:
            assert len(places) + len(self._answered) == self.total
