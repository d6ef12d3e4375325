"""How a batch's lines are counted for people."""

from __future__ import annotations

import pytest

from services.cli.client import Batch, Counts, Ledger, Run
from services.cli.ledger import COUNT_COLUMNS, count_cells, line_counts, run_rows

COUNTS = Counts(total=16, completed=0, failed=16)


def batch(status: str, completed: int, failed: int, unanswered: int, total: int = 16) -> Batch:
    counts = Counts(total=total, completed=completed, failed=failed)
    return Batch(id="b", status=status, request_counts=counts, unanswered=unanswered, usage={})


@pytest.mark.parametrize(
    ("counted", "words", "cells"),
    [
        (batch("completed", 16, 0, 0), "16 of 16 completed", (16, 0, 0, 16)),
        (batch("in_progress", 4, 2, 0), "4 of 16 completed, 2 failed", (4, 2, 0, 16)),
        (batch("cancelled", 0, 16, 16), "0 of 16 completed, 16 cancelled", (0, 0, 16, 16)),
        (batch("cancelled", 4, 12, 9), "4 of 16 completed, 3 failed, 9 cancelled", (4, 3, 9, 16)),
        (batch("expired", 4, 12, 12), "4 of 16 completed, 12 expired", (4, 0, 12, 16)),
        (batch("failed", 4, 12, 12), "4 of 16 completed, 12 unanswered", (4, 0, 12, 16)),
    ],
)
def test_lines_that_nobody_answered_are_told_from_those_that_failed(
    counted: Batch, words: str, cells: tuple[int, ...]
) -> None:
    assert line_counts(counted) == words
    assert count_cells(counted) == cells
    assert len(cells) == len(COUNT_COLUMNS)


@pytest.mark.parametrize("status", ["validating", "failed"])
def test_lines_that_are_not_known_yet_are_no_number(status: str) -> None:
    assert line_counts(batch(status, 0, 0, 0, total=0)) == "not known: no run has begun"


def test_what_has_no_token_and_no_task_has_no_price() -> None:
    ledger = Ledger(processing_cost=0.01, price_1m_tokens=None, tasks_per_dollar=None)
    run = Run(id="r", status="cancelled", request_counts=COUNTS, unanswered=16, ledger=ledger)
    rows = dict(run_rows(run))
    assert (rows["price of 1M tokens"], rows["tasks per dollar"]) == (None, None)
    ledger["price_1m_tokens"], ledger["tasks_per_dollar"] = 0.5, 1234.0
    rows = dict(run_rows(run))
    assert (rows["price of 1M tokens"], rows["tasks per dollar"]) == ("$0.5000", "1,234")
