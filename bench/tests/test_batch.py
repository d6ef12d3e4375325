import json
from pathlib import Path

import pytest

from bench.batch import INPUT, QUICK_ANSWER, batch_figures, write_input

BATCH = {
    "request_counts": {"total": 4, "completed": 3, "failed": 1},
    "usage": {
        "input_tokens": 1000,
        "input_tokens_details": {"cached_tokens": 250},
        "output_tokens": 60,
    },
    "tasks_per_dollar": 12.0,
}


def lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_figures_are_rates_over_the_wall_and_shares():
    cpu = {"modelserver": 9.0, "router": 0.75, "scheduler": 0.25}
    found = batch_figures(BATCH, {"busy_engine_s": 8.0}, 10.0, cpu)
    assert found["lines_per_s"] == 0.3
    assert found["answered_share"] == 0.75
    assert found["cached_share"] == 0.25
    assert found["completion_tokens_per_s"] == 6.0
    assert found["engine_busy_share"] == 0.8
    assert found["services_cpu_share"] == pytest.approx(0.1)
    assert found["cpu_s router"] == 0.75


def test_several_model_servers_are_all_engine():
    cpu = {"modelserver-1": 4.0, "modelserver-2": 4.0, "router": 2.0}
    found = batch_figures(BATCH, {"busy_engine_s": 8.0}, 10.0, cpu)
    assert found["engine_cpu_s"] == 8.0
    assert found["services_cpu_s"] == 2.0


def test_the_full_input_is_the_example_for_the_asked_model(tmp_path: Path):
    path = tmp_path / "in.jsonl"
    assert write_input(INPUT, path, "other", quick=False) == len(lines(INPUT))
    bodies = [line["body"] for line in lines(path)]
    assert all(isinstance(body, dict) and body["model"] == "other" for body in bodies)


def test_the_quick_input_is_one_trace_with_short_answers(tmp_path: Path):
    path = tmp_path / "in.jsonl"
    count = write_input(INPUT, path, "smollm2-135m", quick=True)
    assert 2 <= count < len(lines(INPUT))
    assert len({str(line["custom_id"]).rpartition("#")[0] for line in lines(path)}) == 1
    bodies = [line["body"] for line in lines(path)]
    assert all(isinstance(body, dict) and body["max_tokens"] == QUICK_ANSWER for body in bodies)
