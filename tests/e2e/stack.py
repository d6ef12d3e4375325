"""A real instance, started by `impala up` in a folder and on ports of its own."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from libs.clock.polling import wait_until
from services.cli.main import main
from services.cli.state_dir import Instance, ServiceInfo, StateDir

MODEL = "test-model"
START_WITHIN_S = 110.0
COMMAND_WITHIN_S = 60.0
STOP_WITHIN_S = 60.0
LOOK_EVERY_S = 0.05
IMPALA = [sys.executable, "-m", "services.cli.main"]
ANY_PORTS = [
    f"--{name}-port=0"
    for name in ("http", "grpc", "scheduler", "modelserver", "kvstore", "leap", "etcd")
]


@dataclass(frozen=True, slots=True)
class Ended:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


def environment(home: Path) -> Mapping[str, str]:
    """Without what the environment of whoever runs the tests would change."""
    ours = {key: value for key, value in os.environ.items() if not key.startswith("IMPALA_")}
    if "IMPALA_CACHE" in os.environ:
        ours["IMPALA_CACHE"] = os.environ["IMPALA_CACHE"]
    return {**ours, "XDG_STATE_HOME": str(home)}


def impala(home: Path, *arguments: str | Path, within_s: float = COMMAND_WITHIN_S) -> Ended:
    """Runs a command as a process to its end."""
    done = subprocess.run(
        [*IMPALA, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=within_s,
        env=environment(home),
        check=False,
    )
    return Ended(done.returncode, done.stdout, done.stderr)


@contextlib.contextmanager
def background(home: Path, *arguments: str | Path) -> Iterator[subprocess.Popen[str]]:
    """A command as a process that goes on beside the test, and ends with it."""
    with subprocess.Popen(
        [*IMPALA, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(home),
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def call(*arguments: str | Path) -> Ended:
    """Runs a command to its end, in this process."""
    out, err = (io.TextIOWrapper(io.BytesIO(), write_through=True) for _ in range(2))
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main([str(each) for each in arguments])
    return Ended(code, *(each.buffer.getvalue().decode() for each in (out, err)))


class Stack:
    """`start`, then `url`, `ps`, `kill`; `stop` drains it."""

    def __init__(self, home: Path, flags: Sequence[str] = ()) -> None:
        self.home = home
        self.state = StateDir(home / "state")
        self._log = home / "up.log"
        self._flags = ["--name", MODEL, "--precision", "float32", "--kv-bytes", "256MiB", *flags]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Returns once it is ready."""
        with self._log.open("wb") as log:
            process = self._process = subprocess.Popen(
                [*IMPALA, "up", "--state", self.state.path, *ANY_PORTS, *self._flags],
                stdout=log,
                stderr=log,
                env=environment(self.home),
            )
        if not wait_until(
            self._is_ready,
            START_WITHIN_S,
            every_s=LOOK_EVERY_S,
            hopeless=lambda: process.poll() is not None,
        ):
            said = self.said()
            self.stop()
            raise AssertionError(f"the instance did not start:\n{said}")

    def stop(self) -> int:
        """Drains it; the exit code."""
        process, self._process = self._process, None
        if process is None:
            return 0
        process.send_signal(signal.SIGTERM)
        try:
            return process.wait(STOP_WITHIN_S)
        finally:
            process.kill()
            process.wait()

    @property
    def instance(self) -> Instance:
        return self.state.require()

    @property
    def url(self) -> str:
        return self.instance.url

    @property
    def supervisor_pid(self) -> int:
        return self.instance.pid

    def service(self, name: str) -> ServiceInfo:
        return next(each for each in self.instance.services if each.service == name)

    def address(self, name: str) -> str:
        """Of its gRPC API."""
        return f"127.0.0.1:{self.service(name).ports['grpc']}"

    def kill(self, name: str) -> None:
        """SIGKILL, and waits until it runs again and is ready."""
        before = self.service(name)
        assert before.pid is not None, f"{name} does not run"
        os.kill(before.pid, signal.SIGKILL)
        back = wait_until(lambda: self._is_back(before), START_WITHIN_S, every_s=LOOK_EVERY_S)
        assert back, f"{name} did not come back:\n{self.said()}"

    def impala(self, *arguments: str | Path) -> Ended:
        """A command about this instance; in this process, to spare the tests its start."""
        return call(*arguments, "--state", self.state.path)

    def said(self) -> str:
        return self._log.read_text(errors="replace")

    def _is_ready(self) -> bool:
        instance = self.state.instance()
        return instance is not None and instance.phase == "ready"

    def _is_back(self, before: ServiceInfo) -> bool:
        now = self.service(before.service)
        return now.pid not in (None, before.pid) and now.phase == "up"
