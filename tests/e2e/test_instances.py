"""Instances that come and go: one for a single run, two side by side, one that is killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

import psutil
import pytest

from services.cli.state_dir import state_home
from services.cli.tests.eventually import soon
from tests.e2e.batches import chat_line
from tests.e2e.stack import IMPALA, Stack, environment, impala

DEMO = "smollm2-135m"


@pytest.fixture
def requests(tmp_path: Path) -> Path:
    path = tmp_path / "in.jsonl"
    path.write_text("".join(f"{chat_line(f'q{i}', f'Hi {i}')}\n" for i in range(3)))
    return path


def test_run_with_nothing_running_starts_answers_and_leaves_nothing(
    requests: Path, tmp_path: Path
) -> None:
    output = tmp_path / "out.jsonl"
    flags = ["--model", DEMO, "--substitute-model", "--precision", "float32"]
    done = impala(tmp_path, "run", requests, "-o", output, *flags, within_s=110)
    assert done.code == 0, done.err
    lines = [json.loads(line) for line in output.read_text().splitlines()]
    assert sorted(line["custom_id"] for line in lines) == ["q0", "q1", "q2"]
    assert {line["response"]["body"]["model"] for line in lines} == {DEMO}
    assert "tasks per dollar" in done.out
    assert list(state_home({"XDG_STATE_HOME": str(tmp_path)}).iterdir()) == []
    assert children_of(tmp_path) == []


@pytest.mark.slow
def test_two_instances_run_side_by_side(stack: Stack, tmp_path: Path) -> None:
    other = Stack(tmp_path)
    other.start()
    try:
        ours = {each.pid for each in stack.instance.services}
        theirs = {each.pid for each in other.instance.services}
        assert not ours & theirs
        assert stack.url != other.url
        assert other.impala("jobs", "list", "--json").code == 0
        down = other.impala("down")
        assert down.code == 0, down.err
        assert other.impala("ps").code == 1
        assert stack.impala("ps").code == 0
    finally:
        other.stop()


@pytest.mark.slow
def test_a_killed_supervisor_takes_all_with_it_and_the_state_starts_again(tmp_path: Path) -> None:
    stack = Stack(tmp_path)
    stack.start()
    pids = [each.pid for each in stack.instance.services if each.pid]
    (job,) = stack.impala("jobs", "list", "--json").json
    os.kill(stack.supervisor_pid, signal.SIGKILL)
    assert stack.stop() == -signal.SIGKILL
    soon(lambda: not any(map(psutil.pid_exists, pids)), "the end of all processes")
    assert stack.impala("ps", "--json").json == []
    stack.start()
    try:
        assert stack.impala("jobs", "list", "--json").json == [job]
    finally:
        assert stack.stop() == 0


@pytest.mark.slow
def test_an_interrupted_run_keeps_its_finished_lines(tmp_path: Path) -> None:
    source, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    short = [chat_line(f"s{i}", "Hi") for i in range(3)]
    long = [chat_line(f"l{i}", "Hi", max_tokens=4000, ignore_eos=True) for i in range(60)]
    source.write_text("\n".join(short + long))
    flags = ["--model", DEMO, "--substitute-model"]
    with subprocess.Popen(
        [*IMPALA, "run", source, "-o", output, *flags],
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        env=environment(tmp_path),
    ) as run:
        assert run.stderr is not None
        for line in run.stderr:
            if "in_progress" in line and not line.strip().startswith("in_progress  0/"):
                run.send_signal(signal.SIGINT)
                break
        run.communicate(timeout=100)
    assert run.returncode == 130
    finished = [json.loads(line)["custom_id"] for line in output.read_text().splitlines()]
    assert len(finished) >= 1
    failed = (tmp_path / "out.errors.jsonl").read_text().splitlines()
    assert len(finished) + len(failed) == 63


def children_of(folder: Path) -> list[int]:
    """Processes that were started for a state under the folder."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        if any(str(folder) in part for part in process.info["cmdline"] or []):
            found.append(process.pid)
    return found
