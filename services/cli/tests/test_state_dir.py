"""State folders: who runs there, and what is left behind."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from services.cli.errors import CliError
from services.cli.state_dir import Instance, StateDir, state_home, temporary
from services.cli.tests.eventually import soon

HOLD = """
import sys, pathlib
from services.cli.state_dir import StateDir
with StateDir(pathlib.Path(sys.argv[1])).held():
    print("held", flush=True)
    sys.stdin.read()
"""


def instance(pid: int) -> Instance:
    return Instance(
        pid=pid,
        since=1,
        phase="ready",
        url="http://127.0.0.1:1",
        model="m",
        source="m",
        precision="auto",
        etcd="127.0.0.1:2",
        services=[],
    )


@contextmanager
def held_by_another(path: Path) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", HOLD, str(path)]
    with subprocess.Popen(command, stdin=-1, stdout=-1, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def test_a_folder_is_held_by_one_process_and_the_other_is_told_by_which(tmp_path: Path) -> None:
    state = StateDir(tmp_path / "s")
    with held_by_another(state.path) as process:
        assert state.owner() == process.pid
        told = rf"\(pid {process.pid}\) runs in .*impala down"
        with pytest.raises(CliError, match=told), state.held():
            pass


def test_a_killed_holder_holds_nothing_and_its_record_goes(tmp_path: Path) -> None:
    state = StateDir(tmp_path / "s")
    with held_by_another(state.path) as process:
        state.write(instance(process.pid))
        assert state.instance() == instance(process.pid)
        process.kill()
        soon(lambda: state.owner() is None, "the end of the hold")
    assert state.instance() is None
    assert not (state.path / "instance.json").exists()
    with state.held():
        assert state.owner() == os.getpid()
    assert state.owner() is None


def test_only_its_owner_may_look_into_a_state_folder(tmp_path: Path) -> None:
    state = StateDir(tmp_path / "s")
    state.make()
    assert state.path.stat().st_mode & 0o777 == 0o700


def test_nothing_runs_in_a_folder_that_does_not_exist(tmp_path: Path) -> None:
    state = StateDir(tmp_path / "none")
    assert state.instance() is None
    with pytest.raises(CliError, match="impala up"):
        state.require()


def test_a_folder_that_cannot_be_made_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CliError, match="cannot be used: Not a directory; give another --state"):
        StateDir(tmp_path / "file" / "s").make()


def test_a_disk_that_takes_no_lock_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "lock").symlink_to("/dev/full")
    told = f"The state folder {tmp_path} cannot be used: .*; give another --state"
    with pytest.raises(CliError, match=told), StateDir(tmp_path).held():
        pass


def test_a_record_that_cannot_be_removed_is_no_instance_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "instance.json").mkdir()
    assert StateDir(tmp_path).instance() is None


def test_the_default_folder_follows_xdg(tmp_path: Path) -> None:
    assert state_home({"XDG_STATE_HOME": str(tmp_path)}) == tmp_path / "impala"
    assert state_home({}) == Path.home() / ".local" / "state" / "impala"


def test_folders_of_killed_commands_are_removed_and_those_of_running_ones_stay(
    tmp_path: Path,
) -> None:
    env = {"XDG_STATE_HOME": str(tmp_path)}
    home = tmp_path / "impala"
    left, running, named = home / "run-1", home / "run-2", home / "default"
    for folder in (left, named):
        with StateDir(folder).held():
            pass
    with held_by_another(running):
        fresh = temporary(env)
        assert not left.exists()
        assert running.exists()
    assert named.exists()
    assert not fresh.path.exists()
    assert fresh.path.parent == home
