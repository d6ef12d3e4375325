"""The supervisor with real processes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

import psutil

from services.cli.core.supervision import Phase
from services.cli.supervisor.log import Log
from services.cli.supervisor.service import Service
from services.cli.supervisor.supervisor import Happened, Supervisor
from services.cli.tests.eventually import eventually, soon
from services.cli.tests.supervisor.small import QUICK, service, three

# Paced, so that the disk holds what it says until the log is cut.
TALK = """
import sys, time
while True:
    print("x" * 1000, flush=True)
    time.sleep(0.001)
"""
SAY_WHY = "import sys; print('leap: There is no model.', file=sys.stderr); sys.exit(1)"


@contextlib.asynccontextmanager
async def supervised(
    services: Sequence[Service], folder: Path, news: list[Happened] | None = None
) -> AsyncIterator[Supervisor]:
    on_news = (lambda happened: None) if news is None else news.append
    supervisor = Supervisor(services, folder, backoff=QUICK, on_news=on_news)
    running = asyncio.create_task(supervisor.run())
    try:
        yield supervisor
    finally:
        supervisor.kill()
        await running


def pid_of(supervisor: Supervisor, name: str) -> int | None:
    return {each.name: each.pid for each in supervisor.processes()}[name]


def has_said(log: Log, lines: list[str]) -> Callable[[], bool]:
    return lambda: log.tail() == lines


def is_alive(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


async def test_all_get_ready_and_a_drain_ends_them_in_order(tmp_path: Path) -> None:
    async with supervised(three(tmp_path), tmp_path) as supervisor:
        await supervisor.settled.wait()
        pids = [each.pid for each in supervisor.processes()]
        supervisor.stop()
        await supervisor.ended.wait()
    assert (tmp_path / "order").read_text().split() == ["c", "b", "a"]
    assert not any(is_alive(pid) for pid in pids if pid)
    assert [each.phase for each in supervisor.processes()] == [Phase.STOPPED] * 3


async def test_a_killed_process_is_started_again(tmp_path: Path) -> None:
    news: list[Happened] = []
    async with supervised(three(tmp_path), tmp_path, news) as supervisor:
        await supervisor.settled.wait()
        first = pid_of(supervisor, "b")
        assert first is not None
        os.kill(first, signal.SIGKILL)
        await eventually(lambda: pid_of(supervisor, "b") not in (None, first), "a second life")
        after = {each.name: each for each in supervisor.processes()}
        assert (after["a"].restarts, after["b"].restarts) == (0, 1)
    assert Happened("exited", "b", 0, -9, 0.05) in news


async def test_what_a_service_prints_is_in_its_log_and_the_log_before_is_kept(
    tmp_path: Path,
) -> None:
    for _ in range(2):
        async with supervised([service(tmp_path, "a")], tmp_path) as supervisor:
            await supervisor.settled.wait()
            await eventually(has_said(supervisor.log_of("a"), ["says a"]), "a line")
    assert (tmp_path / "a.log").read_text() == "says a\n"
    assert (tmp_path / "a.log.1").read_text() == "says a\n"


async def test_one_that_cannot_start_ends_the_others(tmp_path: Path) -> None:
    services = [
        service(tmp_path, "etcd", stop_stage=1),
        service(tmp_path, "leap", start_stage=1, program=SAY_WHY),
    ]
    async with supervised(services, tmp_path) as supervisor:
        await supervisor.ended.wait()
    assert supervisor.failure is not None
    assert supervisor.failure.name == "leap"
    assert supervisor.log_of("leap").tail() == ["leap: There is no model."]
    assert (tmp_path / "order").read_text() == "etcd\n"
    assert not supervisor.settled.is_set()


async def test_one_that_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    stubborn = service(tmp_path, "a", stubborn=True, grace_s=0.1)
    news: list[Happened] = []
    async with supervised([stubborn], tmp_path, news) as supervisor:
        await supervisor.settled.wait()
        supervisor.stop()
        await supervisor.ended.wait()
    assert (tmp_path / "order").read_text() == "a\n"
    assert news[-1] == Happened("stopped", "a", 0, -9)


async def test_a_program_that_does_not_exist_is_a_failure_with_a_reason(tmp_path: Path) -> None:
    missing = service(tmp_path, "a")
    nowhere = Service(
        service="a", unit=missing.unit, command=["/nowhere/x"], ports={}, probe=missing.probe
    )
    async with supervised([nowhere], tmp_path) as supervisor:
        await supervisor.ended.wait()
        assert supervisor.log_of("a").tail() == ["cannot run /nowhere/x: No such file or directory"]
    assert supervisor.failure is not None


def test_nothing_outlives_a_supervisor_that_is_killed(tmp_path: Path) -> None:
    program = [sys.executable, "-m", "services.cli.tests.supervisor.small", str(tmp_path)]
    with subprocess.Popen(program, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pids = [int(pid) for pid in parent.stdout.readline().split()]
        assert len(pids) == 3
        assert all(is_alive(pid) for pid in pids)
        parent.kill()
    soon(lambda: not any(is_alive(pid) for pid in pids), "the end of the children")
    assert not (tmp_path / "order").exists()


async def test_the_logs_of_a_talker_are_bounded_while_it_runs(tmp_path: Path) -> None:
    talker = service(tmp_path, "t", program=TALK)
    supervisor = Supervisor([talker], tmp_path, log_bytes=50_000, bound_logs_every_s=0.02)
    running = asyncio.create_task(supervisor.run())
    log = supervisor.log_of("t")
    try:
        await eventually(log.before.exists, "a full log")
        await eventually(lambda: 0 < log.path.stat().st_size < 50_000, "a new one")
        assert log.before.stat().st_size > 50_000
    finally:
        supervisor.kill()
        await running
