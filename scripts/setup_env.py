"""Brings a fresh clone to where it can run: .venv, pinned dependencies, generated code, demo model.

Each step keeps a stamp in .venv/.setup/ with a digest of what it was made from and is skipped while
that holds, so a second call takes well under two seconds. Standard library only: it runs before
anything is installed. It honours pip's own settings (PIP_INDEX_URL, PIP_EXTRA_INDEX_URL, ...) and
IMPALA_TORCH_INDEX, an index to look for torch in besides the usual one. Exit code 1 after one
sentence that says what to do, if something is missing.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from libs.demo.progress import Progress
from scripts.pip_install import InstallError, install

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
STAMPS = VENV / ".setup"
LOCK_FILE = ROOT / "requirements.lock"
SITE_PACKAGES = VENV / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}/site-packages"


class SetupError(Exception):
    """Ends the set-up; the message is one sentence that says what to do."""


def digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def step(name: str, wanted: str, action: Callable[[], None]) -> None:
    """Runs action unless its stamp says that it has been done with the same inputs."""
    stamp = STAMPS / name
    if stamp.is_file() and stamp.read_text() == wanted:
        return
    action()
    STAMPS.mkdir(parents=True, exist_ok=True)
    stamp.write_text(wanted)


def check_tools() -> None:
    if shutil.which("gcc") is None:
        raise SetupError(
            "gcc is needed to compile the CPU kernels and is not on PATH: install it "
            "(Debian: apt-get install gcc libc6-dev)"
        )
    if shutil.which("g++") is None:
        print(
            "set-up: no g++ on PATH, so decoding will use torch's slower operators "
            "(Debian: apt-get install g++)",
            file=sys.stderr,
        )
    if importlib.util.find_spec("ensurepip") is None:
        raise SetupError(
            f"{sys.executable} has no venv support: install it "
            "(Debian 12: apt-get install python3.11-venv)"
        )


def is_usable_venv() -> bool:
    """True for a working Python 3.11 environment that was made at this very path.

    The scripts of an environment name its path, so one that came along with a moved or copied
    folder must be made anew.
    """
    probe = "import sys, pip; print(sys.version_info[:2] == (3, 11))"
    try:
        answer = subprocess.run([PYTHON, "-c", probe], capture_output=True, text=True, check=False)
        first_lines = (VENV / "bin" / "pip").read_text().splitlines()[:2]
    except OSError:
        return False
    return answer.stdout.strip() == "True" and any(str(VENV) in line for line in first_lines)


def make_venv() -> None:
    if is_usable_venv():
        return
    progress = Progress("environment")
    progress.update("making .venv")
    made = subprocess.run(
        [sys.executable, "-m", "venv", "--clear", VENV], capture_output=True, text=True, check=False
    )
    if made.returncode != 0:
        progress.clear()
        reason = (made.stdout + made.stderr).strip().splitlines() or ["no reason given"]
        raise SetupError(f"python -m venv .venv failed: {reason[-1]}")
    progress.done(f"made .venv with Python {sys.version.split()[0]}")


def install_dependencies() -> None:
    if not LOCK_FILE.is_file():
        raise SetupError("requirements.lock is missing: restore it, or make it with 'make lock'")
    try:
        install(PYTHON, LOCK_FILE, os.environ.get("IMPALA_TORCH_INDEX"), VENV / "setup.log")
    except InstallError as error:
        raise SetupError(str(error)) from error


def link_project() -> None:
    """Puts the project and its generated code on sys.path, and `impala` in .venv/bin."""
    (ROOT / "gen").mkdir(exist_ok=True)
    (SITE_PACKAGES / "impala.pth").write_text(f"{ROOT}\n{ROOT / 'gen'}\n")
    script = VENV / "bin" / "impala"
    # The second line is shell to sh and a string to Python: a #! line can hold neither a blank
    # nor a long path.
    script.write_text(
        "#!/bin/sh\n"
        f'\'\'\'exec\' "{PYTHON}" "$0" "$@"\n'
        "' '''\n"
        "import sys\n"
        "\n"
        "from services.cli.main import main\n"
        "\n"
        "sys.exit(main())\n"
    )
    script.chmod(0o755)


def run_project(*arguments: str) -> None:
    """Runs one of the project's own programs; it reports its faults itself."""
    done = subprocess.run([PYTHON, *arguments], cwd=ROOT, check=False)
    if done.returncode != 0:
        raise SetupError(f"'{' '.join(arguments)}' failed: see above")


def set_up() -> None:
    check_tools()
    place = digest(str(ROOT), sys.version, sys.base_prefix)
    step("venv", place, make_venv)
    torch_index = os.environ.get("IMPALA_TORCH_INDEX", "")
    locked = LOCK_FILE.read_text() if LOCK_FILE.is_file() else ""
    step("dependencies", digest(place, locked, torch_index), install_dependencies)
    step("links", digest(place, Path(__file__).read_text()), link_project)
    run_project("scripts/gen_protos.py")
    run_project("-m", "libs.demo.model")
    run_project("-m", "libs.demo.etcd")


def main() -> int:
    # Two at once (make test in one terminal, make quickstart in another) must not share a pip.
    folder = os.open(ROOT, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        set_up()
    except SetupError as error:
        print(f"set-up: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nset-up: interrupted; run it again to go on", file=sys.stderr)
        return 130
    finally:
        os.close(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
