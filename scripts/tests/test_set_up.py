"""The set-up's refusals, through the shell script that make calls."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SETUP = Path(__file__).resolve().parents[1] / "setup"


@pytest.fixture
def bin_folder(tmp_path: Path) -> Path:
    """A PATH with nothing on it but a shell's needs."""
    for tool in ("sh", "dirname"):
        found = shutil.which(tool)
        assert found is not None
        (tmp_path / tool).symlink_to(found)
    return tmp_path


def run_setup(bin_folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [SETUP], env={"PATH": str(bin_folder)}, capture_output=True, text=True, check=False
    )


def test_without_a_python_3_11_it_says_which_one_is_needed(bin_folder: Path) -> None:
    old = bin_folder / "python3"
    old.write_text("#!/bin/sh\nexit 1\n")
    old.chmod(0o755)
    ran = run_setup(bin_folder)
    assert ran.returncode == 1
    assert ran.stderr.startswith("set-up: Python 3.11 is needed")
    assert len(ran.stderr.splitlines()) == 1


def test_a_python3_of_another_version_does_not_hide_python3_11(bin_folder: Path) -> None:
    other = bin_folder / "python3"
    other.write_text("#!/bin/sh\nexit 1\n")
    other.chmod(0o755)
    right = bin_folder / "python3.11"
    right.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    right.chmod(0o755)
    assert "gcc is needed" in run_setup(bin_folder).stderr


def test_without_a_compiler_it_names_the_package(bin_folder: Path) -> None:
    python = bin_folder / "python3"
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    ran = run_setup(bin_folder)
    assert ran.returncode == 1
    assert "gcc is needed" in ran.stderr
    assert "Traceback" not in ran.stderr
