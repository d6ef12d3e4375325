"""A process whose event loop stands still is ended; one whose loop is only slow is not."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import asyncio, ctypes
from services.modelserver.adapters.hang_guard import hang_guard

async def main():
    async with hang_guard({limit_s}):
        {body}
    print("left", flush=True)
    ctypes.PyDLL(None).usleep({after_us})  # holds the interpreter's lock

asyncio.run(main())
"""


def run(body: str, *, limit_s: float = 0.5, after_us: int = 0) -> subprocess.CompletedProcess[str]:
    script = SCRIPT.format(limit_s=limit_s, body=body, after_us=after_us)
    return subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False
    )


def test_what_holds_the_interpreters_lock_for_ever_is_ended_and_shown() -> None:
    ended = run("ctypes.PyDLL(None).pause()")
    assert ended.returncode == 1
    assert "Timeout (0:00:00.500000)!" in ended.stderr
    assert "in main" in ended.stderr
    assert ended.stdout == ""


def test_a_loop_that_comes_round_is_left_alone() -> None:
    ended = run("await asyncio.sleep(1.5)")
    assert (ended.returncode, ended.stdout) == (0, "left\n"), ended.stderr


def test_after_the_block_nothing_is_guarded() -> None:
    ended = run("await asyncio.sleep(0.1)", after_us=900_000)
    assert (ended.returncode, ended.stdout) == (0, "left\n"), ended.stderr


def test_no_limit_is_no_guard() -> None:
    ended = run("ctypes.PyDLL(None).usleep(900_000)", limit_s=0)
    assert (ended.returncode, ended.stdout) == (0, "left\n"), ended.stderr
