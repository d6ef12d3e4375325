"""A child's wall clock jumps while it runs; its monotonic clock and ours do not."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from libs.testing.clock_shift import env_for, shift

CHILD = """
import datetime, os, sys, threading, time
print("ready", flush=True)
for line in sys.stdin:
    waited = time.monotonic()
    threading.Event().wait(0.01)  # lasts as long as it says, whatever the clock shows
    waited = time.monotonic() - waited
    now = datetime.datetime.now(datetime.timezone.utc).timestamp()
    print(time.time(), now, time.monotonic(), waited, flush=True)
"""
HOUR = 3600.0
SLACK_S = 600.0  # the answer comes late on a busy machine


class Child:
    """Tells what its clocks show."""

    def __init__(self, path: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", CHILD],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | env_for(path),
        )
        assert self._line() == "ready"

    def clocks(self) -> list[float]:
        """time.time(), datetime.now(), time.monotonic(), and how long a wait of 0.01 s took."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return [float(word) for word in self._line().split()]

    def _line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()


@pytest.fixture
def child(tmp_path: Path) -> Iterator[Child]:
    child = Child(tmp_path / "clock")
    yield child
    child.process.communicate(timeout=20)


def test_the_wall_clock_of_a_running_process_jumps_both_ways(child: Child, tmp_path: Path) -> None:
    for hours in (0, 1, -1, 0.5, 0):
        shift(tmp_path / "clock", hours * HOUR)
        wall, date, monotonic, waited = child.clocks()
        assert abs(wall - time.time() - hours * HOUR) < SLACK_S
        assert abs(date - wall) < SLACK_S
        assert abs(monotonic - time.monotonic()) < SLACK_S
        assert waited < SLACK_S


def test_fractions_of_a_second_and_negative_ones_add_up(child: Child, tmp_path: Path) -> None:
    shift(tmp_path / "clock", 0)
    zero = child.clocks()
    shift(tmp_path / "clock", -1.75)
    after = child.clocks()
    gone = after[2] - zero[2]
    assert abs((after[0] - zero[0]) - (gone - 1.75)) < 0.5
