"""The rule of the root conftest.py: a test file without a test ends the run."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def run_pytest(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    shutil.copy(ROOT / "conftest.py", folder)
    (folder / "pytest.ini").write_text("[pytest]\nmarkers = slow: only in verify\n")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def test_a_file_without_a_test_ends_the_run_and_is_named(tmp_path: Path) -> None:
    (tmp_path / "test_full.py").write_text("def test_it(): pass\n")
    (tmp_path / "test_empty.py").write_text("def helper(): pass\n")
    ran = run_pytest(tmp_path)
    assert ran.returncode != 0
    assert "test files without a test: test_empty.py" in ran.stderr


def test_a_file_of_slow_tests_only_is_fine(tmp_path: Path) -> None:
    (tmp_path / "test_full.py").write_text("def test_it(): pass\n")
    (tmp_path / "test_slow.py").write_text(
        "import pytest\n@pytest.mark.slow\ndef test_it(): pass\n"
    )
    ran = run_pytest(tmp_path, "-m", "not slow")
    assert ran.returncode == 0, ran.stderr
    assert "1 passed, 1 deselected" in ran.stdout


def test_one_test_can_be_chosen_by_name(tmp_path: Path) -> None:
    (tmp_path / "test_full.py").write_text("def test_a(): pass\ndef test_b(): pass\n")
    assert run_pytest(tmp_path, "test_full.py::test_b").returncode == 0
