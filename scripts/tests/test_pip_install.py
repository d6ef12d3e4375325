"""What someone waiting for pip gets to see."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from scripts.pip_install import InstallError, count_pins, describe, failure, install


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("Collecting torch==2.13.0 (from -r requirements.lock (line 9))", "3/103 found, torch"),
        (
            "  Downloading torch-2.13.0-cp311-cp311-linux_x86_64.whl (190.4 MB)",
            "3/103 found, downloading torch (190.4 MB)",
        ),
        ("Installing collected packages: a, b, c", "writing 3 packages"),
        (
            "WARNING: Retrying (Retry(total=4)) ...",
            "no answer from the package index, trying again",
        ),
        ("  Using cached six-1.17.0-py2.py3-none-any.whl", None),
    ],
)
def test_a_line_of_pip_becomes_progress(line: str, shown: str | None) -> None:
    assert describe(line, collected=3, total=103) == shown


def test_an_index_out_of_reach_is_named_as_that() -> None:
    tail = [
        "WARNING: Retrying ... NewConnectionError('... Name or service not known')\n",
        "ERROR: Could not find a version that satisfies the requirement torch==2.13.0\n",
    ]
    assert "package index cannot be reached" in str(failure(tail, Path("pip.log")))


def test_another_failure_gives_the_reason_of_pip_and_its_log() -> None:
    tail = ["ERROR: No matching distribution found for torch==99\n"]
    sentence = str(failure(tail, Path("pip.log")))
    assert "No matching distribution found for torch==99" in sentence
    assert "pip.log" in sentence


def test_comments_and_options_are_no_pins(tmp_path: Path) -> None:
    lock = tmp_path / "requirements.lock"
    lock.write_text("# made by\n\n--no-binary :none:\na==1\nb==2\n")
    assert count_pins(lock) == 2


def test_a_lock_that_cannot_be_installed_fails_and_leaves_the_log(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lock, log = tmp_path / "requirements.lock", tmp_path / "pip.log"
    lock.write_text("this is no requirement\n")
    with pytest.raises(InstallError, match="could not install"):
        install(Path(sys.executable), lock, None, log)
    assert "this is no requirement" in log.read_text()
    assert "in place" not in capsys.readouterr().err
