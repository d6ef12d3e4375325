"""How the running command is told to people."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.cli.invocation import typed


@pytest.fixture
def python(tmp_path: Path) -> Path:
    """In a folder with an `impala` beside it."""
    (tmp_path / "a venv").mkdir()
    script = tmp_path / "a venv" / "impala"
    script.touch(mode=0o755)
    return script.with_name("python")


def test_on_the_path_its_name_is_enough(python: Path) -> None:
    assert typed(str(python), search=str(python.parent)) == "impala"


def test_elsewhere_it_is_named_by_its_path(
    python: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert typed(str(python), search="") == f"'{python.parent}/impala'"
    monkeypatch.chdir(tmp_path)
    assert typed(str(python), search="") == "'a venv/impala'"


def test_another_program_of_that_name_is_not_it(python: Path, tmp_path: Path) -> None:
    other = tmp_path / "bin"
    other.mkdir()
    (other / "impala").touch(mode=0o755)
    assert typed(str(python), search=str(other)) == f"'{python.parent}/impala'"


def test_without_a_script_it_is_the_module(tmp_path: Path) -> None:
    assert typed(str(tmp_path / "python"), search="") == f"{tmp_path}/python -m services.cli.main"
