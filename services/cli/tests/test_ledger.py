"""How a batch's lines are counted for people."""

from __future__ import annotations

import pytest

from services.cli.client import Batch, Counts
from services.cli.ledger import COUNT_COLUMNS, count_cells, line_counts


def batch(status: str, completed: int, failed: int, unanswered: int) -> Batch:
    counts = Counts(total=16, completed=completed, failed=failed)
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
