"""How long a restart waits."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.cli.core.backoff import Backoff

BACKOFF = Backoff(first_s=0.25, longest_s=30.0, healthy_s=20.0)


def test_it_doubles_up_to_the_longest() -> None:
    waits = [BACKOFF.wait_s(failures) for failures in range(1, 10)]
    assert waits == [0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]


@given(st.integers(min_value=1, max_value=10**9))
def test_it_is_never_shorter_than_the_first_nor_longer_than_the_longest(failures: int) -> None:
    assert 0.25 <= BACKOFF.wait_s(failures) <= 30.0


def test_a_life_that_was_ready_long_enough_starts_the_count_anew() -> None:
    assert BACKOFF.failures_after(7, 20.0) == 1


@pytest.mark.parametrize("ready_s", [None, 0.0, 19.9])
def test_a_shorter_life_or_one_that_was_never_ready_is_one_failure_more(
    ready_s: float | None,
) -> None:
    assert BACKOFF.failures_after(7, ready_s) == 8


def test_no_failure_no_wait() -> None:
    with pytest.raises(ValueError):
        BACKOFF.wait_s(0)
