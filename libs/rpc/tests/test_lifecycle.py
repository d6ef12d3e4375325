"""A service's process, as a process: signals, drains, exit codes, one sentence for people."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from libs.rpc import Shutdown

PRELUDE = """
import asyncio
from libs.config import ConfigError
from libs.errors import Unavailable
from libs.obs import setup_logging
from libs.rpc import PortInUse, Shutdown, run_service
setup_logging("demo")
"""
SERVE = """
async def main(shutdown):
    print("up", flush=True)
    await shutdown.wait()
    print("draining", shutdown.reason, flush=True)
    {drain}
    print("bye", flush=True)
run_service(main, "demo")
"""


class Child:
    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def says(self, line: str) -> None:
        assert self._process.stdout is not None
        assert self._process.stdout.readline().strip() == line

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def ends(self) -> tuple[int, str]:
        """Its exit code and what it wrote to stderr."""
        _, err = self._process.communicate(timeout=20)
        return self._process.returncode, err


@pytest.fixture
def run(tmp_path: Path) -> Iterator[object]:
    children: list[subprocess.Popen[str]] = []

    def start(code: str) -> Child:
        process = subprocess.Popen(
            [sys.executable, "-c", PRELUDE + code],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        children.append(process)
        return Child(process)

    yield start
    for process in children:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_drains_and_exits_0(run, number: signal.Signals) -> None:  # type: ignore[no-untyped-def]
    child = run(SERVE.format(drain="pass"))
    child.says("up")
    child.signal(number)
    child.says(f"draining {number.name}")
    child.says("bye")
    assert child.ends()[0] == 0


def test_a_second_signal_does_not_wait_for_the_drain(run) -> None:  # type: ignore[no-untyped-def]
    child = run(SERVE.format(drain="await asyncio.Event().wait()"))
    child.says("up")
    child.signal(signal.SIGTERM)
    child.says("draining SIGTERM")
    child.signal(signal.SIGTERM)
    assert child.ends()[0] == 128 + signal.SIGTERM


@pytest.mark.parametrize(
    ("error", "code", "sentence"),
    [
        ("ConfigError('--x is wrong.')", 2, "demo: --x is wrong.\n"),
        ("PortInUse('Port 7 is in use.')", 1, "demo: Port 7 is in use.\n"),
        ("Unavailable('No etcd at h:1.', 'ETCD_UNREACHABLE')", 1, "demo: No etcd at h:1.\n"),
        ("ExceptionGroup('g', [PortInUse('Port 7 is in use.')])", 1, "demo: Port 7 is in use.\n"),
    ],
)
def test_a_known_mistake_is_one_sentence(run, error: str, code: int, sentence: str) -> None:  # type: ignore[no-untyped-def]
    child = run(f"async def main(shutdown): raise {error}\nrun_service(main, 'demo')")
    assert child.ends() == (code, sentence)


def test_a_misspelt_variable_is_told_once_at_the_start(run) -> None:  # type: ignore[no-untyped-def]
    child = run(
        "import os\n"
        "os.environ['IMPALA_OBJECT'] = '/objects'\n"
        "async def main(shutdown): pass\n"
        "run_service(main, 'demo')"
    )
    code, err = child.ends()
    assert code == 0
    assert err.count("IMPALA_OBJECT is ignored: no setting has this name; IMPALA_OBJECTS has.") == 1


def test_a_bug_is_a_traceback_and_exit_1(run) -> None:  # type: ignore[no-untyped-def]
    child = run("async def main(shutdown): raise KeyError('oops')\nrun_service(main, 'demo')")
    code, err = child.ends()
    assert code == 1
    assert "Traceback" in err
    assert "KeyError: 'oops'" in err


def test_a_lasting_task_that_breaks_ends_the_process_by_a_drain(run) -> None:  # type: ignore[no-untyped-def]
    """Nobody waits for it, and what it does must not stay undone unseen."""
    child = run(
        "from libs.lasting import lasting\n"
        "async def sweep(): raise KeyError('oops')\n"
        "async def main(shutdown):\n"
        "    task = lasting(sweep(), 'the sweep')\n"
        "    await shutdown.wait()\n"
        "    print('draining', flush=True)\n"
        "run_service(main, 'demo')"
    )
    child.says("draining")
    code, err = child.ends()
    assert code == 1
    assert "KeyError: 'oops'" in err
    assert err.splitlines()[-1] == "demo: stopped: 'the sweep' broke; the log has the error"


def test_a_lasting_task_that_returns_or_is_cancelled_ends_nothing(run) -> None:  # type: ignore[no-untyped-def]
    child = run(
        "from libs.lasting import lasting\n"
        "async def wait(for_s): await asyncio.sleep(for_s)\n"
        "async def main(shutdown):\n"
        "    done, left = lasting(wait(0), 'done'), lasting(wait(60), 'left')\n"
        "    await done\n"
        "    left.cancel()\n"
        "    await asyncio.gather(left, return_exceptions=True)\n"
        "    print(shutdown.requested, flush=True)\n"
        "run_service(main, 'demo')"
    )
    child.says("False")
    assert child.ends()[0] == 0


def test_children_are_spawned_not_forked(run) -> None:  # type: ignore[no-untyped-def]
    child = run(
        "import multiprocessing\n"
        "async def main(shutdown): print(multiprocessing.get_start_method(), flush=True)\n"
        "run_service(main, 'demo')"
    )
    child.says("spawn")
    assert child.ends()[0] == 0


def test_a_worker_that_is_started_beside_a_channel_in_use_does_its_work(run) -> None:  # type: ignore[no-untyped-def]
    """A forked one would have the locks of gRPC's threads, and hang."""
    child = run(
        "import multiprocessing, os\n"
        "from libs.rpc import connect\n"
        "from libs.rpc.tests.raw import echo, raw_service, unary\n"
        "from libs.testing.rpc import serving\n"
        "async def main(shutdown):\n"
        "    async with serving(raw_service(unary={'Echo': echo})) as rpc:\n"
        "        async with connect(rpc.address) as channel:\n"
        "            await unary(channel, 'Echo')(b'')\n"
        "            worker = multiprocessing.Process(target=os._exit, args=(7,))\n"
        "            worker.start()\n"
        "            await asyncio.to_thread(worker.join, 60)\n"
        "            print(worker.exitcode, await unary(channel, 'Echo')(b'on'), flush=True)\n"
        "run_service(main, 'demo')"
    )
    child.says("7 b'on'")
    assert child.ends()[0] == 0


async def test_the_first_reason_for_a_shutdown_stays() -> None:
    shutdown = Shutdown()
    assert not shutdown.requested
    shutdown.request("SIGTERM")
    shutdown.request("lease lost")
    await shutdown.wait()
    assert (shutdown.requested, shutdown.reason) == (True, "SIGTERM")
