"""The supervisor: tells the state machine what happened and carries out what it answers.

One task, `run`, owns the state machine; what happens elsewhere (an exit, readiness, a stop) reaches
it through one queue. Timers are the queue's timeout.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from services.cli.core.backoff import Backoff
from services.cli.core.supervision import (
    Effect,
    Failure,
    Kill,
    Phase,
    Spawn,
    Supervision,
    Terminate,
)
from services.cli.supervisor.log import MOST_BYTES, Log
from services.cli.supervisor.service import Service, send, spawn

PROBE_FIRST_S, PROBE_LONGEST_S = 0.05, 0.4
BOUND_LOGS_EVERY_S = 5.0


@dataclass(frozen=True, slots=True)
class Process:
    """What `impala ps` shows. pid: None while it is not running. since: Unix seconds of the start
    of this life, None before the first."""

    service: str
    name: str
    pid: int | None
    ports: dict[str, int]
    since: int | None
    restarts: int
    phase: Phase


@dataclass(frozen=True, slots=True)
class Happened:
    """News for whoever shows them. code: what it ended with; wait_s: until it is started again."""

    what: Literal["spawned", "ready", "exited", "stopping", "stopped"]
    name: str
    restarts: int = 0
    code: int = 0
    wait_s: float = 0.0


@dataclass(slots=True)
class _Life:
    """A process from its start to its end, and the tasks that watch it."""

    process: asyncio.subprocess.Process
    since: int
    watcher: asyncio.Task[None]
    prober: asyncio.Task[None]


@dataclass(frozen=True, slots=True)
class _Exited:
    name: str
    code: int


@dataclass(frozen=True, slots=True)
class _Ready:
    name: str
    pid: int


@dataclass(frozen=True, slots=True)
class _Stop:
    at_once: bool


_Event = _Exited | _Ready | _Stop


class Supervisor:
    """`await Supervisor(...).run()` until `stop()`; `settled` is set once all are ready."""

    def __init__(
        self,
        services: Sequence[Service],
        logs: Path,
        *,
        backoff: Backoff | None = None,
        on_news: Callable[[Happened], None] = lambda _: None,
        log_bytes: int = MOST_BYTES,
        bound_logs_every_s: float = BOUND_LOGS_EVERY_S,
        now: Callable[[], float] = time.monotonic,
        unix_s: Callable[[], float] = time.time,
    ) -> None:
        """logs: folder of the services' logs. on_news is called after every change of state.
        log_bytes: of each log; looked at every so many seconds, so that one that grows fast may be
        longer for so long."""
        self._services = {each.unit.name: each for each in services}
        self._logs = {name: Log(logs, name) for name in self._services}
        self._backoff = backoff or Backoff()
        self._core = Supervision([each.unit for each in services], self._backoff)
        self._lives: dict[str, _Life] = {}
        self._started: dict[str, int] = {}
        self._events: asyncio.Queue[_Event] = asyncio.Queue()
        self._on_news = on_news
        self._log_bytes = log_bytes
        self._bound_logs_every_s = bound_logs_every_s
        self._now = now
        self._unix_s = unix_s
        self.settled = asyncio.Event()
        """All have been ready once."""
        self.ended = asyncio.Event()

    @property
    def stopping(self) -> bool:
        return self._core.stopping

    @property
    def failure(self) -> Failure | None:
        """Which could not start; None while or when there is none."""
        return self._core.failure

    def processes(self) -> list[Process]:
        return [self._process(name) for name in self._services]

    def log_of(self, name: str) -> Log:
        return self._logs[name]

    def stop(self) -> None:
        """Drain; returns at once."""
        self._events.put_nowait(_Stop(at_once=False))

    def kill(self) -> None:
        """End everything at once; returns at once."""
        self._events.put_nowait(_Stop(at_once=True))

    async def run(self) -> None:
        """Until everything has ended after a stop or a failure. A cancellation kills all first."""
        bounding = asyncio.create_task(self._bound_logs())
        try:
            for log in self._logs.values():
                log.rotate()
            await self._perform(self._core.begin())
            while not self._core.finished:
                await self._perform(await self._next())
        finally:
            bounding.cancel()
            await self._clear()
            self.ended.set()

    async def _next(self) -> list[Effect]:
        due = self._core.next_due
        timeout = None if due is None else max(0.0, due - self._now())
        try:
            event = await asyncio.wait_for(self._events.get(), timeout)
        except TimeoutError:
            return self._core.tick(self._now())
        match event:
            case _Exited(name, code):
                return self._exited(name, code)
            case _Ready(name, pid):
                return self._ready(name, pid)
            case _Stop(at_once):
                return self._core.kill(self._now()) if at_once else self._core.stop(self._now())

    def _exited(self, name: str, code: int) -> list[Effect]:
        life = self._lives.pop(name)
        life.prober.cancel()
        effects = self._core.exited(name, code, self._now())
        status = self._core.status(name)
        if status.phase is Phase.BACKOFF:
            wait_s = self._backoff.wait_s(status.failures)
            self._logs[name].note(f"ended with code {code}; started again in {wait_s:g} s")
            self._on_news(Happened("exited", name, status.restarts, code, wait_s))
        else:
            self._on_news(Happened("stopped", name, status.restarts, code))
        return effects

    def _ready(self, name: str, pid: int) -> list[Effect]:
        life = self._lives.get(name)
        if life is None or life.process.pid != pid:
            return []
        effects = self._core.ready(name, self._now())
        if self._core.settled:
            self.settled.set()
        self._on_news(Happened("ready", name, self._core.status(name).restarts))
        return effects

    async def _perform(self, effects: Sequence[Effect]) -> None:
        for effect in effects:
            match effect:
                case Spawn(name):
                    await self._spawn(name)
                case Terminate(name):
                    self._on_news(Happened("stopping", name))
                    send(self._lives[name].process, signal.SIGTERM)
                case Kill(name):
                    send(self._lives[name].process, signal.SIGKILL)

    async def _spawn(self, name: str) -> None:
        process = await spawn(self._services[name], self._logs[name])
        since = int(self._unix_s())
        self._started[name] = since
        self._lives[name] = _Life(
            process,
            since,
            asyncio.create_task(self._watch(name, process)),
            asyncio.create_task(self._probe(name, process.pid)),
        )
        self._on_news(Happened("spawned", name, self._core.status(name).restarts))

    async def _watch(self, name: str, process: asyncio.subprocess.Process) -> None:
        self._events.put_nowait(_Exited(name, await process.wait()))

    async def _probe(self, name: str, pid: int) -> None:
        wait_s = PROBE_FIRST_S
        while True:
            if await self._services[name].probe():
                break
            await asyncio.sleep(wait_s)
            wait_s = min(2 * wait_s, PROBE_LONGEST_S)
        self._events.put_nowait(_Ready(name, pid))

    async def _bound_logs(self) -> None:
        while True:
            await asyncio.sleep(self._bound_logs_every_s)
            for log in self._logs.values():
                with contextlib.suppress(OSError):
                    await asyncio.to_thread(log.bound, self._log_bytes)

    async def _clear(self) -> None:
        """Leaves no process and no task behind."""
        lives, self._lives = list(self._lives.values()), {}
        for life in lives:
            send(life.process, signal.SIGKILL)
            life.prober.cancel()
        if lives:
            await asyncio.wait([life.watcher for life in lives])

    def _process(self, name: str) -> Process:
        service, status = self._services[name], self._core.status(name)
        life = self._lives.get(name)
        return Process(
            service=service.service,
            name=name,
            pid=life.process.pid if life else None,
            ports=dict(service.ports),
            since=self._started.get(name),
            restarts=status.restarts,
            phase=status.phase,
        )
