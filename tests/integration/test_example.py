"""The example file is what its README says: whole agent runs, each one trace."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

from services.router.core.batch_file import split_lines
from services.router.core.batch_line import BatchLine, FileValidator, LineRules
from services.router.core.params import CHAT, parse_request
from services.router.execution import trace_of

EXAMPLE = Path(__file__).parents[2] / "examples" / "agent_steps.jsonl"
MODEL = "smollm2-135m"


def example() -> list[BatchLine]:
    validator = FileValidator(LineRules(CHAT, None, frozenset({MODEL})))
    lines = [validator.push(raw) for raw in split_lines([EXAMPLE.read_bytes()])]
    assert validator.finish().errors == ()
    return [line for line in lines if line is not None]


def test_every_line_is_a_request_that_is_accepted() -> None:
    lines = example()
    assert len(lines) == 16
    assert {parse_request(CHAT, line.body).model for line in lines} == {MODEL}


def test_the_steps_of_a_run_name_one_trace_and_extend_each_other() -> None:
    runs: defaultdict[str, list[Any]] = defaultdict(list)
    for line in example():
        run, _, step = line.custom_id.partition("#")
        assert trace_of(line).trace_id == run
        assert int(step) == len(runs[run])
        runs[run].append(line.body["messages"])
    assert sorted(map(len, runs.values())) == [3, 4, 4, 5]
    for steps in runs.values():
        for before, after in pairwise(steps):
            assert after[: len(before)] == before
