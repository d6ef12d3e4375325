"""Which process to start, stop or kill next: a state machine without processes and without time.

The shell tells what happened (`started`, `ready`, `exited`, `stop`, `kill`, `tick`), each with the
time in seconds of any one monotonic clock, and carries out the effects that are answered, in order.

    waiting --its stage begins--> starting --ready--> up
       starting, up --exited--> backoff --time--> starting
    while stopping:  starting, up --its turn--> stopping --exited--> stopped

Start: stage by stage, a stage begins once every unit before it has been ready once. Until all have
been ready once, a unit that ends by itself with a code above 0 could not start (a wrong flag, a
missing model): that is the failure of the whole, and what runs is drained. A unit that a signal
ended is started again at any time.

Stop: by stop_stage, the lowest first; a unit that outlives its grace is killed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

from services.cli.core.backoff import Backoff


class Phase(Enum):
    WAITING = "waiting"
    STARTING = "starting"
    UP = "up"
    BACKOFF = "backoff"
    STOPPING = "stopping"
    STOPPED = "stopped"


LIVE = frozenset({Phase.STARTING, Phase.UP, Phase.STOPPING})


@dataclass(frozen=True, slots=True)
class Unit:
    """One process to keep alive. grace_s: seconds it may take to end after SIGTERM."""

    name: str
    start_stage: int
    stop_stage: int
    grace_s: float = 15.0


@dataclass(frozen=True, slots=True)
class Spawn:
    name: str


@dataclass(frozen=True, slots=True)
class Terminate:
    name: str


@dataclass(frozen=True, slots=True)
class Kill:
    name: str


Effect = Spawn | Terminate | Kill


@dataclass(frozen=True, slots=True)
class Failure:
    """The unit that could not start, and the code it ended with."""

    name: str
    code: int


@dataclass(slots=True)
class Status:
    """What is known of a unit. Read it, do not write it."""

    unit: Unit
    phase: Phase = Phase.WAITING
    restarts: int = 0
    """Lives after the first."""
    failures: int = 0
    was_ready: bool = False
    ready_at: float | None = None
    """Of this life."""
    due_at: float | None = None
    """BACKOFF: when to start it. STOPPING: when to kill it."""
    spawned: bool = False


class Supervision:
    """One writer: the shell's loop."""

    def __init__(self, units: Sequence[Unit], backoff: Backoff) -> None:
        names = [unit.name for unit in units]
        if len(set(names)) != len(names):
            raise ValueError(f"units need different names: {names}")
        self._all = {unit.name: Status(unit) for unit in units}
        self._backoff = backoff
        self._stage: int | None = None
        self.stopping = False
        self.failure: Failure | None = None

    def status(self, name: str) -> Status:
        return self._all[name]

    @property
    def settled(self) -> bool:
        """Every unit has been ready once."""
        return all(each.was_ready for each in self._all.values())

    @property
    def finished(self) -> bool:
        """A stop was asked for and nothing runs any more."""
        return self.stopping and all(each.phase is Phase.STOPPED for each in self._all.values())

    @property
    def next_due(self) -> float | None:
        """When `tick` has something to do; None = not before something else happens."""
        due = [each.due_at for each in self._all.values() if each.due_at is not None]
        return min(due, default=None)

    def begin(self) -> list[Effect]:
        return self._next_stages()

    def ready(self, name: str, now: float) -> list[Effect]:
        each = self._all[name]
        if each.phase is not Phase.STARTING:
            return []
        each.phase, each.ready_at, each.was_ready = Phase.UP, now, True
        return [] if self.stopping else self._next_stages()

    def exited(self, name: str, code: int, now: float) -> list[Effect]:
        """code: as a shell has it from Python, negative for the signal that ended the process."""
        each = self._all[name]
        if each.phase not in LIVE:
            raise ValueError(f"{name} ended twice: it was {each.phase.value}")
        ready_s = None if each.ready_at is None else now - each.ready_at
        each.ready_at, each.due_at = None, None
        if self.stopping:
            each.phase = Phase.STOPPED
            return self._stop_next(now)
        if code > 0 and not self.settled:
            self.failure = Failure(name, code)
            each.phase = Phase.STOPPED
            return self.stop(now)
        each.failures = self._backoff.failures_after(each.failures, ready_s)
        each.phase = Phase.BACKOFF
        each.due_at = now + self._backoff.wait_s(each.failures)
        return []

    def stop(self, now: float) -> list[Effect]:
        """Drain. Asking again changes nothing."""
        if self.stopping:
            return []
        self.stopping = True
        for each in self._all.values():
            if each.phase not in LIVE:
                each.phase, each.due_at = Phase.STOPPED, None
        return self._stop_next(now)

    def kill(self, now: float) -> list[Effect]:
        """End everything at once."""
        effects = self.stop(now)
        spared = {effect.name for effect in effects if isinstance(effect, Terminate)}
        for each in self._live():
            each.phase, each.due_at = Phase.STOPPING, None
        kills: list[Effect] = [Kill(each.unit.name) for each in self._live()]
        return [effect for effect in effects if effect.name not in spared] + kills

    def tick(self, now: float) -> list[Effect]:
        """What is due by now."""
        effects: list[Effect] = []
        for each in self._all.values():
            if each.due_at is None or each.due_at > now:
                continue
            each.due_at = None
            if each.phase is Phase.BACKOFF:
                effects.append(self._spawn(each))
            elif each.phase is Phase.STOPPING:
                effects.append(Kill(each.unit.name))
        return effects

    def check_integrity(self) -> None:
        """Raises AssertionError when the parts contradict each other."""
        for name, each in self._all.items():
            timed = each.phase in (Phase.BACKOFF, Phase.STOPPING)
            assert each.due_at is None or timed, f"{name} is due while {each.phase.value}"
            assert each.phase is not Phase.BACKOFF or each.due_at is not None, f"{name} lost"
            assert (each.ready_at is None) or each.phase in LIVE, f"{name} is ready and not alive"
            idle = each.phase in (Phase.WAITING, Phase.BACKOFF)
            assert not (self.stopping and idle), f"{name} is {each.phase.value} while stopping"
        if self.stopping and not self.finished:
            assert any(each.phase is Phase.STOPPING for each in self._live()), (
                "a drain stands still"
            )

    def _live(self) -> list[Status]:
        return [each for each in self._all.values() if each.phase in LIVE]

    def _spawn(self, each: Status) -> Spawn:
        each.restarts += each.spawned
        each.spawned, each.phase = True, Phase.STARTING
        return Spawn(each.unit.name)

    def _next_stages(self) -> list[Effect]:
        """Begins every stage whose predecessors have all been ready."""
        effects: list[Effect] = []
        for stage in _ordered(each.unit.start_stage for each in self._all.values()):
            members = [each for each in self._all.values() if each.unit.start_stage == stage]
            if self._stage is None or stage > self._stage:
                self._stage = stage
                effects += [self._spawn(each) for each in members]
            if not all(each.was_ready for each in members):
                break
        return effects

    def _stop_next(self, now: float) -> list[Effect]:
        """Terminates the lowest stop stage that still runs, unless that was done."""
        live = self._live()
        if not live:
            return []
        stage = min(each.unit.stop_stage for each in live)
        turn = [each for each in live if each.unit.stop_stage == stage]
        effects: list[Effect] = []
        for each in turn:
            if each.phase is not Phase.STOPPING:
                each.phase, each.due_at = Phase.STOPPING, now + each.unit.grace_s
                effects.append(Terminate(each.unit.name))
        return effects


def _ordered(stages: Iterable[int]) -> list[int]:
    return sorted(set(stages))
