"""What a batch's money looks like in JSON."""

from __future__ import annotations

from typing import Any

import pytest

from libs.records.batch import LedgerRecord, RunRecord
from services.router.views import run_view


def shown(**ledger: Any) -> tuple[Any, Any, Any]:
    """Cost, price of 1M tokens, tasks per dollar."""
    run = RunRecord(
        id="run-1",
        batch_id="batch_1",
        account="a",
        job_id="job-1",
        fleet="f",
        model="m",
        endpoint="/v1/chat/completions",
        input_object="i",
        index_object="x",
        total=1,
        ledger=LedgerRecord(price_per_engine_hour=100.0, **ledger),
        created_at=1,
        started_at=1.0,
    )
    money = run_view(run, "cancelled")["ledger"]
    return money["processing_cost"], money["price_1m_tokens"], money["tasks_per_dollar"]


def test_without_a_token_or_a_task_a_cost_has_no_price() -> None:
    assert shown(busy_engine_s=36.0) == (pytest.approx(1.0), None, None)


def test_without_a_cost_there_is_no_number_of_tasks_per_dollar() -> None:
    assert shown(tasks=3, prompt_tokens=9) == (0.0, 0.0, None)


def test_failed_lines_have_tokens_and_are_no_tasks() -> None:
    cost, price, tasks_per_dollar = shown(busy_engine_s=36.0, prompt_tokens=500_000)
    assert (cost, price, tasks_per_dollar) == (pytest.approx(1.0), pytest.approx(2.0), None)
