"""The whole of Impala as a user starts it: `impala up` in a state folder of its own."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from bench.lib.processes import Sampler
from libs.clock.polling import wait_until

READY_WITHIN_S = 300.0
STOP_WITHIN_S = 60.0
LOOK_EVERY_S = 0.05


class StackError(Exception):
    """`impala up` ended or was not ready in time; what it said is in the message."""


class Stack:
    """`with Stack(flags) as stack`: entered when it is ready, left when all of it has ended.

    Runs in the foreground, so that its processes are ours in the books of CPU time.
    """

    def __init__(self, *flags: str) -> None:
        self._flags = flags
        self._process: subprocess.Popen[bytes] | None = None
        self._folder = tempfile.TemporaryDirectory(prefix="impala-bench-")
        self._state = Path(self._folder.name) / "state"
        self._log = Path(self._folder.name) / "up.log"
        self.sampler = Sampler(self.pids)
        self.start_s = 0.0
        """From the command to readiness, seconds."""

    @property
    def url(self) -> str:
        return str(self._instance()["url"])

    def pids(self) -> Mapping[str, int]:
        """Service -> pid, those that live; `supervisor` is `impala up` itself."""
        instance = self._instance()
        if not instance:
            return {}
        found = {each["name"]: each["pid"] for each in instance["services"] if each["pid"]}
        return {**found, "supervisor": instance["pid"]}

    def restarts(self) -> int:
        """Restarts of all services: a run with any is no measurement."""
        return sum(each["restarts"] for each in self._instance().get("services", ()))

    def __enter__(self) -> Self:
        started = time.perf_counter()
        impala = Path(sys.executable).with_name("impala")
        command = [str(impala), "up", "--state", str(self._state), "--http-port", "0"]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [*command, *self._flags], stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        try:
            self._await(lambda: self._instance().get("phase") == "ready")
        except BaseException:
            self._stop()
            raise
        self.start_s = time.perf_counter() - started
        self.sampler.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.sampler.__exit__()
        self._stop()

    def _instance(self) -> dict[str, Any]:
        """The supervisor's record, {} while there is none. It is written whole or not at all."""
        try:
            found: dict[str, Any] = json.loads((self._state / "instance.json").read_bytes())
        except FileNotFoundError:
            return {}
        return found

    def _await(self, ready: Callable[[], bool]) -> None:
        assert self._process is not None
        process = self._process
        if not wait_until(
            ready,
            READY_WITHIN_S,
            every_s=LOOK_EVERY_S,
            hopeless=lambda: process.poll() is not None,
        ):
            raise StackError(self._log.read_text(errors="replace").strip()[-2000:])

    def _stop(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(STOP_WITHIN_S)
        except subprocess.TimeoutExpired:
            # The services ask the kernel to end with their supervisor.
            self._process.kill()
            self._process.wait()
        self._folder.cleanup()
