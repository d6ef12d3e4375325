"""The command line about a running instance."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import IO

import pytest

from libs.clock.polling import wait_until
from tests.e2e.batches import chat_line
from tests.e2e.stack import MODEL, Stack, background


@pytest.fixture
def requests(tmp_path: Path) -> Path:
    path = tmp_path / "in.jsonl"
    path.write_text("".join(f"{chat_line(f'q{i}', f'Hi {i}')}\n" for i in range(3)))
    return path


def test_ps_lists_every_process(stack: Stack) -> None:
    listed = stack.impala("ps", "--json").json
    assert {each["service"] for each in listed} == {
        "etcd",
        "router",
        "scheduler",
        "modelserver",
        "kvstore",
        "leap",
    }
    for each in listed:
        assert each["pid"] > 0
        assert each["since"] > 1_700_000_000
        assert each["restarts"] >= 0
        assert all(0 < port < 65536 for port in each["ports"].values())
    shown = stack.impala("ps")
    assert shown.code == 0
    assert str(listed[0]["pid"]) in shown.out


def test_a_second_up_on_the_same_state_is_refused(stack: Stack) -> None:
    said = stack.impala("up")
    assert said.code == 1
    assert said.err.splitlines()[-1].startswith(
        f"impala: Another 'impala up' (pid {stack.supervisor_pid}) runs in {stack.state.path}: "
    )


def test_run_uses_the_instance_that_runs(stack: Stack, requests: Path, tmp_path: Path) -> None:
    output = tmp_path / "out.jsonl"
    done = stack.impala("run", requests, "-o", output, "--model", MODEL)
    assert done.code == 0, done.err
    lines = [json.loads(line) for line in output.read_text().splitlines()]
    assert sorted(line["custom_id"] for line in lines) == ["q0", "q1", "q2"]
    assert not (tmp_path / "out.errors.jsonl").exists()
    assert "tasks per dollar" in done.out
    assert "is ready" not in done.err


def test_run_on_a_url_and_on_the_job_that_is_named(
    stack: Stack, requests: Path, tmp_path: Path
) -> None:
    first, second = (stack.impala("jobs", "create", "--model", MODEL).out.strip() for _ in range(2))
    flags = ["--url", stack.url, "--force", "--json"]
    output = tmp_path / "out.jsonl"
    named = stack.impala("run", requests, "-o", output, *flags, "--job", first)
    assert named.json["batch"]["job_id"] == first, named.err
    assert "--job" not in named.err
    unnamed = stack.impala("run", requests, "-o", output, *flags)
    used = unnamed.json["batch"]["job_id"]
    assert f"has 3 jobs: this runs on the newest, {used}; name another with --job" in unnamed.err
    for job_id in (first, second):
        assert stack.impala("jobs", "delete", job_id).code == 0
    other = stack.impala("jobs", "create", "--model", "other").out.strip()
    wrong = stack.impala("run", requests, "-o", output, *flags, "--job", other)
    assert wrong.code == 2
    assert "is for the model 'other'" in wrong.err
    assert stack.impala("jobs", "delete", other).code == 0


def test_with_a_second_job_a_batch_must_name_its_own(stack: Stack, requests: Path) -> None:
    (first,) = (j["id"] for j in stack.impala("jobs", "list", "--json").json if j["model"] == MODEL)
    made = stack.impala("jobs", "create", "--model", MODEL)
    second = made.out.strip()
    try:
        for part in ("has 2 jobs now", f"--job {second}", "job_id", "'impala jobs list'"):
            assert part in made.err
        unnamed = stack.impala("batch", "submit", requests)
        assert (unnamed.code, unnamed.out, unnamed.err.count("\n")) == (2, "", 1)
        for part in (first, second, "--job", "'impala jobs list'"):
            assert part in unnamed.err
        named = stack.impala("batch", "submit", requests, "--job", second, "--wait", "--json")
        assert (named.code, named.json["job_id"]) == (0, second)
    finally:
        assert stack.impala("jobs", "delete", second).code == 0
    gone = stack.impala("batch", "submit", requests, "--job", second)
    assert (gone.code, gone.err.count("\n")) == (2, 1)
    assert f"There is no job '{second}': 'impala jobs list'" in gone.err


def test_the_precision_that_was_chosen_is_shown(stack: Stack) -> None:
    jobs = stack.impala("jobs", "list", "--json").json
    assert {job["precision"] for job in jobs if job["model"] == MODEL} == {"float32"}
    assert "float32" in stack.impala("jobs", "list").out
    assert f"{MODEL} (float32) at " in stack.impala("ps").err


def test_an_interrupted_run_keeps_what_is_answered_and_says_how_to_go_on(
    stack: Stack, tmp_path: Path
) -> None:
    source, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    endless = {"max_tokens": 4000, "ignore_eos": True}
    lines = [chat_line(f"long{i}", f"Go {i}", **endless) for i in range(3)]
    lines.append(chat_line("short", "Hi"))
    source.write_text("\n".join(lines))
    command = ("run", source, "-o", output, "--state", stack.state.path)
    with background(stack.home, *command) as process:
        assert wait_until(lambda: one_line_is_answered(stack), 60, every_s=0.1), "no line answered"
        (batch,) = stack.impala("batch", "list", "--limit", "1", "--json").json
        early = stack.impala("batch", "results", batch["id"], "-o", tmp_path / "early.jsonl")
        assert (early.code, early.err) == (
            1,
            "impala: The batch is in_progress: wait for its end, or give --follow.\n",
        )
        assert not (tmp_path / "early.jsonl").exists()
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "cancelling: what is answered is kept" in err
    assert "Interrupted: " in err and "--force" in err
    assert "1 of 4 completed, 3 cancelled" in out
    answered = [json.loads(line)["custom_id"] for line in output.read_text().splitlines()]
    left = [json.loads(line) for line in (tmp_path / "out.errors.jsonl").read_text().splitlines()]
    assert answered == ["short"]
    assert {line["error"]["code"] for line in left} == {"batch_cancelled"}
    again = stack.impala("run", source, "-o", output)
    assert (again.code, again.err.count("\n")) == (2, 1)
    assert f"{output} exists: give --force" in again.err


@pytest.mark.slow
def test_a_batch_that_a_killed_run_left_is_named_when_its_folder_is_used_again(
    tmp_path: Path,
) -> None:
    source, state = tmp_path / "in.jsonl", tmp_path / "state"
    source.write_text(chat_line("endless", "Go", max_tokens=4000, ignore_eos=True))
    flags = ("--model", "smollm2-135m", "--substitute-model")
    command = ("run", source, "-o", tmp_path / "out.jsonl", "--state", state, *flags)
    with background(tmp_path, *command) as killed:
        wait_for_line(killed.stderr, "in_progress")
    with background(tmp_path, *command) as again:
        assert "1 unfinished in this folder" in wait_for_line(again.stderr, "batch_")


def wait_for_line(stream: IO[str] | None, part: str) -> str:
    """Reads up to the first line with the part in it. The stream ends with its process, which the
    test's time limit ends."""
    assert stream is not None
    said = []
    for line in stream:
        said.append(line)
        if part in line:
            return line
    raise AssertionError(f"{part!r} was not said:\n{''.join(said)}")


def one_line_is_answered(stack: Stack) -> bool:
    return any(
        each["status"] == "in_progress"
        and each["request_counts"] == {"total": 4, "completed": 1, "failed": 0}
        for each in stack.impala("batch", "list", "--limit", "1", "--json").json
    )


def test_run_fills_in_the_model_that_lines_do_not_name(stack: Stack, tmp_path: Path) -> None:
    source, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    bare = json.loads(chat_line("bare", "Hi"))
    del bare["body"]["model"]
    source.write_text(json.dumps(bare))
    flags = ["--model", MODEL, "--substitute-model"]
    done = stack.impala("run", source, "-o", output, *flags)
    assert done.code == 0, done.err
    assert json.loads(output.read_text())["response"]["body"]["model"] == MODEL


@pytest.mark.parametrize("model", [MODEL, "smollm2-135m"])
def test_run_answers_lines_for_other_models_with_the_one_that_runs(
    stack: Stack, tmp_path: Path, model: str
) -> None:
    """Named as requests name it there, or as `impala up` was given it."""
    source, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    others = [chat_line("a", "Hi", model="gpt-4o"), chat_line("b", "Hi", model="o1")]
    source.write_text("\n".join([*others, chat_line("c", "Hi")]))
    refused = stack.impala("run", source, "-o", output, "--model", model)
    assert (refused.code, refused.err.count("\n")) == (2, 1)
    assert "--substitute-model" in refused.err
    done = stack.impala("run", source, "-o", output, "--model", model, "--substitute-model")
    assert done.code == 0, done.err
    assert "is ready" not in done.err
    answers = [json.loads(line) for line in output.read_text().splitlines()]
    assert {each["response"]["body"]["model"] for each in answers} == {MODEL}
    assert len(answers) == 3


def test_run_without_a_model_names_the_one_that_runs(stack: Stack, tmp_path: Path) -> None:
    source, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text(chat_line("a", "Hi", model="gpt-4o"))
    misfit = stack.impala("run", source, "-o", output)
    assert (misfit.code, misfit.err.count("\n")) == (1, 1)
    assert f"--model {MODEL} --substitute-model" in misfit.err
    unnamed = stack.impala("run", source, "-o", output, "--substitute-model")
    assert (unnamed.code, unnamed.err.count("\n")) == (2, 1)
    assert f"as --model {MODEL} (the running instance serves it)" in unnamed.err


def test_run_says_why_the_instance_that_runs_does_not_fit(
    stack: Stack, requests: Path, tmp_path: Path
) -> None:
    done = stack.impala("run", requests, "-o", tmp_path / "out.jsonl", "--precision", "int8")
    assert done.code == 1
    assert done.err.count("\n") == 1
    assert "does not fit, it serves 'test-model' in float32, not in int8: " in done.err
    assert "impala down" in done.err


def test_run_with_failed_lines_writes_them_beside_and_exits_with_3(
    stack: Stack, tmp_path: Path
) -> None:
    source, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    lines = [chat_line("good", "Hi"), chat_line("bad", "Hi", temperature=9)]
    source.write_text("\n".join(lines))
    done = stack.impala("run", source, "-o", output, "--json")
    assert done.code == 3, done.err
    assert done.json["batch"]["request_counts"] == {"total": 2, "completed": 1, "failed": 1}
    errors = tmp_path / "out.errors.jsonl"
    assert done.json["errors"] == str(errors)
    assert json.loads(errors.read_text())["custom_id"] == "bad"
    assert json.loads(output.read_text())["custom_id"] == "good"


def test_run_of_a_file_that_fails_in_validation_names_the_lines(
    stack: Stack, tmp_path: Path
) -> None:
    source, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text(f"{chat_line('a', 'Hi')}\n{{broken\n{chat_line('a', 'Hi')}\n")
    done = stack.impala("run", source, "-o", output)
    assert done.code == 1
    assert "impala: line 2: " in done.err
    assert "(invalid_json_line)" in done.err
    assert "impala: line 3: " in done.err
    assert "(duplicate_custom_id)" in done.err
    assert not output.exists()


def test_a_batch_from_submit_to_results(stack: Stack, requests: Path, tmp_path: Path) -> None:
    submitted = stack.impala("batch", "submit", requests, "--wait", "--json")
    assert submitted.code == 0, submitted.err
    batch = submitted.json
    assert batch["status"] == "completed"
    assert stack.impala("batch", "status", batch["id"], "--json").json["id"] == batch["id"]
    results = stack.impala("batch", "results", batch["id"])
    ids = sorted(json.loads(line)["custom_id"] for line in results.out.splitlines())
    assert ids == ["q0", "q1", "q2"]
    followed = stack.impala("batch", "results", batch["id"], "--follow")
    assert sorted(followed.out.splitlines()) == sorted(results.out.splitlines())
    saved = tmp_path / "saved.jsonl"
    assert stack.impala("files", "download", batch["output_file_id"], "-o", saved).code == 0
    assert saved.read_text() == results.out
    assert batch["id"] in [each["id"] for each in stack.impala("batch", "list", "--json").json]
    run = stack.impala("runs", "show", batch["run_id"], "--json").json
    assert run["ledger"]["tasks"] == 3
    assert "task completion" in stack.impala("runs", "show", batch["run_id"]).out
    assert run["id"] in [each["id"] for each in stack.impala("runs", "list", "--json").json]
    cancelled = stack.impala("batch", "cancel", batch["id"])
    assert cancelled.code == 1
    assert cancelled.err == "impala: Cannot cancel a batch with status 'completed'.\n"


def test_submit_prints_the_id_once(stack: Stack, requests: Path) -> None:
    submitted = stack.impala("batch", "submit", requests)
    assert submitted.code == 0
    assert submitted.out.strip().startswith("batch_")
    assert submitted.err.count("\n") == 1
    assert "validated next" in submitted.err
    assert f" batch status {submitted.out.strip()}'" in submitted.err
    assert stack.impala("batch", "results", submitted.out.strip(), "--follow").code == 0


def test_results_of_a_batch_that_failed_in_validation_are_its_errors(
    stack: Stack, tmp_path: Path
) -> None:
    source, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text(f"{chat_line('a', 'Hi')}\n{{broken\n")
    batch = stack.impala("batch", "submit", source, "--wait", "--json").json
    for flags in ([], ["--errors"], ["--follow"], ["-o", output], ["-o", output, "--follow"]):
        said = stack.impala("batch", "results", batch["id"], *flags)
        assert (said.code, said.out) == (1, ""), flags
        assert "line 2: " in said.err
        assert "(invalid_json_line)" in said.err
    assert not output.exists()


def test_the_status_of_a_batch_that_failed_in_validation_is_a_failure(
    stack: Stack, tmp_path: Path
) -> None:
    source = tmp_path / "in.jsonl"
    source.write_text(f"{chat_line('a', 'Hi')}\n{{broken\n")
    batch = stack.impala("batch", "submit", source, "--wait", "--json").json
    said = stack.impala("batch", "status", batch["id"])
    assert said.code == 1
    assert "line 2: " in said.err
    assert "(invalid_json_line)" in said.err
    assert stack.impala("batch", "status", batch["id"], "--json").code == 1


def test_failed_lines_are_pointed_to_and_so_is_that_there_are_none(
    stack: Stack, requests: Path, tmp_path: Path
) -> None:
    source = tmp_path / "bad.jsonl"
    source.write_text(chat_line("bad", "Hi", temperature=9))
    submitted = stack.impala("batch", "submit", source, "--wait")
    assert submitted.code == 3
    assert "1 line failed: " in submitted.err
    bad = stack.impala("batch", "list", "--limit", "1", "--json").json[0]["id"]
    assert f" batch results {bad} --errors'" in submitted.err
    status = stack.impala("batch", "status", bad)
    assert status.code == 0
    assert "1 line failed: " in status.err
    assert f" batch results {bad} --errors' shows why." in status.err
    answers = stack.impala("batch", "results", bad)
    assert (answers.code, answers.out) == (0, "")
    assert f"{bad} has no answer: " in answers.err
    assert f" batch results {bad} --errors'" in answers.err
    good = stack.impala("batch", "submit", requests, "--wait", "--json").json["id"]
    assert stack.impala("batch", "status", good).err == ""
    errors = stack.impala("batch", "results", good, "--errors")
    assert (errors.code, errors.out) == (0, "")
    assert errors.err == f"The batch {good} has no failed line.\n"
    assert stack.impala("batch", "results", good).err == ""


def test_a_deleted_job_is_gone(stack: Stack) -> None:
    made = stack.impala("jobs", "create", "--model", "other")
    job_id = made.out.strip()
    assert f"No model server serves 'other' now, only {MODEL}: " in made.err
    deleted = stack.impala("jobs", "delete", job_id)
    assert (deleted.code, deleted.err) == (0, f"{job_id} is deleted\n")
    gone = stack.impala("jobs", "show", job_id)
    assert gone.code == 1
    assert gone.err.count("\n") == 1


def test_up_has_made_one_job_and_more_can_be_made(stack: Stack) -> None:
    jobs = stack.impala("jobs", "list", "--json").json
    assert [job["name"] for job in jobs].count("impala up") == 1
    shown = stack.impala("jobs", "show", jobs[-1]["id"], "--json").json
    assert shown == jobs[-1]
    made = stack.impala("jobs", "create", "--model", "other", "--name", "mine", "--json").json
    assert (made["model"], made["name"]) == ("other", "mine")
    assert made["id"].startswith("job-")


def test_files_are_uploaded_listed_and_deleted(stack: Stack, requests: Path) -> None:
    file_id = stack.impala("files", "upload", requests).out.strip()
    assert file_id in [each["id"] for each in stack.impala("files", "list", "--json").json]
    assert stack.impala("files", "download", file_id).out == requests.read_text()
    assert stack.impala("files", "delete", file_id).code == 0
    gone = stack.impala("files", "download", file_id)
    assert gone.code == 1
    assert gone.err.count("\n") == 1


def test_keys_are_shown_once_and_revoked_by_their_id(stack: Stack) -> None:
    made = stack.impala("keys", "create", "--account", "acme", "--json").json
    assert made["key"].startswith("imp-")
    listed = stack.impala("keys", "list", "--account", "acme", "--json").json
    assert made["key"] not in json.dumps(listed)
    assert [key["hint"] for key in listed] == [made["key"][-4:]]
    assert stack.impala("keys", "revoke", listed[0]["hash"][:12]).code == 0
    (after,) = stack.impala("keys", "list", "--account", "acme", "--json").json
    assert after["revoked_at"] is not None


def test_kv_stats_name_every_kvstore(stack: Stack) -> None:
    stats = stack.impala("kv", "stats", "--json").json
    assert list(stats) == ["kvstore"]
    assert stats["kvstore"]["tiers"][0]["tier"] == "memory"
    assert "memory" in stack.impala("kv", "stats").out
