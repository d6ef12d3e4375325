"""What a tree of processes used, and what everything else on the machine used meanwhile."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import psutil

OTHERS_WARN = 0.1
"""Share of the machine's CPU used by others, above which a run is not worth keeping."""


@dataclass(frozen=True, slots=True)
class CpuReading:
    """Counters in seconds since some fixed time. `machine_s` is busy time summed over all cores."""

    at: float
    machine_s: float
    own_s: float


def read_cpu() -> CpuReading:
    """Counters of the machine, and of this process with all that it started, ended or not."""
    # Our own first: what is used in between counts as others', never as less than nothing.
    own = sum(tree_cpu(os.getpid()).values())
    times = psutil.cpu_times()
    # The kernel counts guest time within user time already; a waiting core is an idle one.
    busy = times.user + times.nice + times.system + times.irq + times.softirq + times.steal
    return CpuReading(time.monotonic(), busy, own)


def others_cpu(before: CpuReading, after: CpuReading, cores: int) -> float:
    """Share in [0, 1] of all cores that processes outside our tree used between two readings."""
    wall = (after.at - before.at) * cores
    if wall <= 0:
        return 0.0
    others = (after.machine_s - before.machine_s) - (after.own_s - before.own_s)
    return min(1.0, max(0.0, others / wall))


def tree_cpu(pid: int) -> dict[int, float]:
    """CPU seconds of a process and its descendants by pid, each with its reaped children."""
    used: dict[int, float] = {}
    for process in _tree(pid):
        with contextlib.suppress(psutil.Error):
            times = process.cpu_times()
            used[process.pid] = (
                times.user + times.system + times.children_user + times.children_system
            )
    return used


@dataclass(slots=True)
class Watched:
    """What a named process was seen to use; it may be started anew under the same name."""

    peak_rss: int = 0
    """Bytes."""
    _ended_s: float = 0.0
    _last_s: float = 0.0
    _pid: int = 0

    @property
    def cpu_s(self) -> float:
        """CPU seconds since its (first) start, all threads."""
        return self._ended_s + self._last_s

    def see(self, pid: int, cpu_s: float, rss: int) -> None:
        """A reading of the process that bears the name now."""
        if pid != self._pid:
            self._ended_s += self._last_s
            self._pid = pid
        self._last_s = cpu_s
        self.peak_rss = max(self.peak_rss, rss)


@dataclass
class Sampler:
    """Samples named processes in a thread; `with Sampler(names) as sampler`.

    pids: asked at each sample for name -> pid, since supervised processes change theirs.
    """

    pids: Callable[[], Mapping[str, int]]
    every_s: float = 0.25
    seen: dict[str, Watched] = field(default_factory=dict)

    def __enter__(self) -> Sampler:
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sampler", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def cpu(self) -> dict[str, float]:
        """CPU seconds of each name as of now."""
        self.sample()
        return {name: watched.cpu_s for name, watched in self.seen.items()}

    def sample(self) -> None:
        for name, pid in self.pids().items():
            with contextlib.suppress(psutil.Error):
                process = psutil.Process(pid)
                times = process.cpu_times()
                rss = process.memory_info().rss
                watched = self.seen.setdefault(name, Watched())
                watched.see(pid, times.user + times.system, rss)

    def _run(self) -> None:
        while not self._ended.wait(self.every_s):
            self.sample()


def _tree(pid: int) -> Iterable[psutil.Process]:
    try:
        root = psutil.Process(pid)
        return [root, *root.children(recursive=True)]
    except psutil.Error:
        return []
