"""The command line about an instance that asks for keys."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.e2e.batches import chat_line
from tests.e2e.stack import MODEL, Stack


@pytest.mark.slow
def test_from_the_first_start_with_keys_to_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text(chat_line("a", "Hi"))
    stack = Stack(tmp_path, ["--auth"])
    stack.start()
    try:
        where = f"--state {stack.state.path}"
        # However this program is typed here.
        assert re.search(
            rf"IMPALA_API_KEY=\$\(\S*impala keys create --account me {where}\)", stack.said()
        )
        assert f"impala jobs create --model {MODEL} {where}" in stack.said()
        assert 'api_key=os.environ["IMPALA_API_KEY"]' in stack.said()
        refused = stack.impala("run", source, "-o", output)
        assert (refused.code, refused.err.count("\n")) == (1, 1)
        assert "set IMPALA_API_KEY; 'impala keys create --account NAME'" in refused.err
        key = stack.impala("keys", "create", "--account", "acme").out.strip()
        monkeypatch.setenv("IMPALA_API_KEY", key)
        jobless = stack.impala("batch", "submit", source)
        assert (jobless.code, jobless.err.count("\n")) == (2, 1)
        assert f"'impala jobs create --model {MODEL}'" in jobless.err
        job = stack.impala("jobs", "create", "--model", MODEL).out.strip()
        done = stack.impala("run", source, "-o", output, "--json")
        assert done.code == 0, done.err
        assert done.json["batch"]["job_id"] == job
        monkeypatch.delenv("IMPALA_API_KEY")
        flags = ["--force", "--url", stack.url, "--api-key", key]
        assert stack.impala("run", source, "-o", output, *flags).code == 0
    finally:
        assert stack.stop() == 0
