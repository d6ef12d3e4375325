"""Images and containers by buildah, without a container engine: chroot, the host's network."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil

from libs.clock.polling import wait_until
from scripts.images.errors import ImagesError
from scripts.images.pip_settings import PipSettings
from scripts.images.tools import CACHE, ROOT, run

ISOLATION = ("--isolation", "chroot")
POLL_S = 0.2


@dataclass(frozen=True, slots=True)
class Image:
    """What an image says about itself. size: bytes, the base included."""

    name: str
    size: int
    user: str
    entrypoint: tuple[str, ...]
    health_command: tuple[str, ...]


def build(name: str, file: Path, arguments: Mapping[str, str], pip: PipSettings) -> Image:
    """Builds `file` from the repository's root. Raises ImagesError."""
    flags = [word for key, value in arguments.items() for word in ("--build-arg", f"{key}={value}")]
    flags += [word for path in pip.mounts for word in ("--volume", f"{path}:{path}:ro")]
    # The OCI format has no health checks.
    flags += ["--format", "docker", "--ignorefile", str(ROOT / ".containerignore")]
    flags += ["--tag", name, "--file", str(file)]
    with tempfile.NamedTemporaryFile("w", suffix=".conf") as conf:
        conf.write(pip.conf)
        conf.flush()
        flags += ["--secret", f"id=pip,src={conf.name}"]
        command = ("buildah", "bud", "--layers", *ISOLATION, "--network", "host", *flags)
        run(*command, ROOT, log=CACHE / f"{name}.log")
    return inspect(name)


def inspect(name: str) -> Image:
    told = json.loads(run("buildah", "inspect", "--type", "image", name))
    config = told["Docker"]["config"]
    listed = json.loads(run("buildah", "images", "--json", name))
    return Image(
        name=name,
        size=_bytes(listed[0]["size"]),
        user=config.get("User", ""),
        entrypoint=tuple(config.get("Entrypoint") or ()),
        health_command=tuple((config.get("Healthcheck") or {}).get("Test", ())[1:]),
    )


def _bytes(text: str) -> int:
    number, unit = text.split()
    return int(float(number) * {"B": 1, "KB": 1e3, "MB": 1e6, "GB": 1e9}[unit.upper()])


class Container:
    """One run of an image's entry point, as its user: `with Container(...) as container`."""

    def __init__(
        self,
        image: Image,
        *,
        env: Mapping[str, str],
        volumes: Mapping[Path, str],
        command: Iterable[str] = (),
    ) -> None:
        """volumes: from a folder here to a path there. command: instead of the entry point."""
        self.image = image
        self.log = CACHE / f"{image.name}.run.log"
        self._command = tuple(command) or image.entrypoint
        self._flags = [word for key, value in env.items() for word in ("--env", f"{key}={value}")]
        for source, target in volumes.items():
            self._flags += ["--volume", f"{source}:{target}"]

    def __enter__(self) -> Self:
        self._name = run("buildah", "from", self.image.name).strip()
        with self.log.open("w") as log:
            self._process = subprocess.Popen(
                self._buildah(self._command), stdout=log, stderr=subprocess.STDOUT
            )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for process in self._below():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self._process.kill()
        self._process.wait()
        run("buildah", "rm", self._name)

    def wait(self, timeout_s: float) -> int:
        """The exit code. Raises ImagesError when it has not ended by then."""
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            message = f"{self.image.name} did not end within {timeout_s:g} s"
            raise self._error(message) from None

    def wait_healthy(self, within_s: float) -> None:
        """Runs the image's health check, inside, until it is content. Raises ImagesError."""
        command = self._buildah(self.image.health_command)
        until(
            lambda: subprocess.run(command, capture_output=True, check=False).returncode == 0,
            within_s,
            self._alive,
            lambda: self._error(f"{self.image.name} was not healthy after {within_s:g} s"),
        )

    def stop(self, within_s: float) -> int:
        """SIGTERM to the container's first process, as an engine sends it; the exit code."""
        self._first().send_signal(signal.SIGTERM)
        return self.wait(within_s)

    def uid(self) -> int:
        """Of the container's first process."""
        return int(self._first().uids().effective)

    def _first(self) -> psutil.Process:
        """The process that runs the command; above it are buildah's own. Raises ImagesError."""
        for process in self._below():
            with contextlib.suppress(psutil.Error):
                # The program may have been looked up on PATH.
                program, *words = process.cmdline() or [""]
                if (Path(program).name, *words) == self._command:
                    return process
        raise self._error(f"{self.image.name} has no process")

    def _below(self) -> list[psutil.Process]:
        with contextlib.suppress(psutil.NoSuchProcess):
            return psutil.Process(self._process.pid).children(recursive=True)
        return []

    def _buildah(self, command: Iterable[str]) -> list[str]:
        flags = [*ISOLATION, "--network", "host", "--user", self.image.user, *self._flags]
        return ["buildah", "run", *flags, self._name, "--", *command]

    def _alive(self) -> None:
        code = self._process.poll()
        if code is not None:
            raise self._error(f"{self.image.name} ended with exit code {code}")

    def _error(self, message: str) -> ImagesError:
        lines = self.log.read_text(errors="replace").strip().splitlines() or ["nothing"]
        return ImagesError(f"{message}; the last it said: {lines[-1]} (all of it: {self.log})")


def until(
    done: Callable[[], bool],
    within_s: float,
    check: Callable[[], None],
    late: Callable[[], ImagesError],
) -> None:
    def is_done() -> bool:
        if done():
            return True
        check()
        return False

    if not wait_until(is_done, within_s, every_s=POLL_S):
        raise late()
