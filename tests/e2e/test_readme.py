"""What the README shows is run as it is written."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tests.e2e.batches import chat_line
from tests.e2e.stack import Stack, environment

README = Path(__file__).parents[2] / "README.md"
SNIPPET = re.compile(r"```python\n(.*?)```", re.DOTALL)
ADDRESS = "http://127.0.0.1:8080"


def test_the_python_example_prints_answers_and_failed_lines(stack: Stack, tmp_path: Path) -> None:
    (program,) = SNIPPET.findall(README.read_text())
    assert program.count(ADDRESS) == 1
    (tmp_path / "examples").mkdir()
    lines = [chat_line("good", "Hi"), chat_line("bad", "Hi", temperature=9)]
    (tmp_path / "examples" / "agent_steps.jsonl").write_text("\n".join(lines))
    ran = subprocess.run(
        [sys.executable, "-c", program.replace(ADDRESS, stack.url)],
        cwd=tmp_path,
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    status, answer, *failed = ran.stdout.splitlines()
    assert status.startswith("completed BatchRequestCounts(completed=1, failed=1, total=2")
    assert answer.startswith("good ")
    assert ['"custom_id":"bad"' in line for line in failed if line] == [True]
