"""What requests hold is bounded, and given back in every case."""

from __future__ import annotations

import pickle

import pytest

from services.router.request_bytes import RequestBytes, TooManyBytes


def test_holds_share_the_budget_and_give_back() -> None:
    budget = RequestBytes(20)
    with budget.hold("a") as one, budget.hold("b") as other:
        third = budget.hold("c")
        one.take(10)
        third.take(6)
        other.check(4)
        other.take(4)
        with pytest.raises(TooManyBytes):
            other.take(1)
        assert budget.held == 20
        third.release()
        assert budget.held == 14
        other.take(6)
    assert budget.held == 0


def test_a_refusal_takes_nothing_and_says_when_to_come_again() -> None:
    budget = RequestBytes(20)
    with budget.hold("a") as hold:
        hold.take(3)
        with pytest.raises(TooManyBytes) as caught:
            hold.take(8)
        assert budget.held == 3
    assert caught.value.retry_after_s
    copy = pickle.loads(pickle.dumps(caught.value))
    assert (type(copy), copy.message) == (TooManyBytes, caught.value.message)


def test_at_least_takes_what_is_missing() -> None:
    budget = RequestBytes(20)
    with budget.hold("a") as hold:
        hold.at_least(4)
        hold.at_least(2)
        assert budget.held == 4
        hold.at_least(9)
        assert budget.held == 9
    assert budget.held == 0


def test_no_owner_holds_more_than_half() -> None:
    budget = RequestBytes(20)
    with budget.hold("a") as one, budget.hold("a") as more, budget.hold("b") as other:
        assert one.limit == 10
        one.take(6)
        with pytest.raises(TooManyBytes, match="Your requests under way hold the 10 bytes"):
            more.check(5)
        other.take(10)
        more.take(4)
        assert budget.held == 20
    assert budget.held == 0
