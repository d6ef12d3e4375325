"""Who is ended when the model raises: those that raise alone, as long as anybody runs."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.modelserver.herd.core.errors import EngineBroken
from services.modelserver.herd.core.suspects import ALONE_LIMIT, Suspects


def hunt(suspects: Suspects, steps: list[str], bad: set[str]) -> tuple[list[str], int]:
    """Run until nobody is suspected; the guilty, and how many turns it took after the first."""
    assert suspects.turn is None
    guilty, turns = suspects.raised(steps), 0
    while (turn := suspects.turn) is not None:
        turns += 1
        guilty += suspects.raised(turn) if bad & set(turn) else suspects.ran()
    return guilty, turns


def test_what_raised_once_and_then_runs_is_nobodys_fault() -> None:
    assert hunt(Suspects(), ["a", "b", "c"], set()) == ([], 2)
    assert hunt(Suspects(), ["a"], set()) == ([], 1)


def test_a_step_that_raises_again_alone_is_guilty() -> None:
    assert hunt(Suspects(), ["a"], {"a"}) == (["a"], 1)


def test_one_bad_step_among_many_is_found_in_few_turns() -> None:
    steps = [f"s{n}" for n in range(16)]
    for bad in steps:
        assert hunt(Suspects(), steps, {bad}) == ([bad], 8)


@given(st.integers(1, 40), st.data())
def test_exactly_the_bad_ones_are_ended_when_any_other_ran(count: int, data: st.DataObject) -> None:
    steps = [f"s{n}" for n in range(count)]
    bad = data.draw(st.sets(st.sampled_from(steps)))
    suspects = Suspects()
    if len(bad) > 1 and len(bad) == count:
        with pytest.raises(EngineBroken):
            hunt(suspects, steps, bad)
        return
    guilty, turns = hunt(suspects, steps, bad)
    assert sorted(guilty) == sorted(bad)
    assert turns < 2 * count + 1


@given(st.integers(2, 40), st.integers(2, 8))
def test_steps_that_raise_only_in_company_all_run(count: int, most: int) -> None:
    steps, suspects = [f"s{n}" for n in range(count)], Suspects()
    ran: list[str] = []
    assert suspects.raised(steps) == []
    while (turn := suspects.turn) is not None:
        if len(turn) >= most:
            assert suspects.raised(turn) == []
        else:
            ran += turn
            assert suspects.ran() == []
    assert sorted(ran) == sorted(steps)


def test_lone_steps_that_raise_in_a_row_are_the_engines_fault() -> None:
    suspects = Suspects()
    for n in range(ALONE_LIMIT - 1):
        assert hunt(suspects, [f"s{n}"], {f"s{n}"}) == ([f"s{n}"], 1)
    with pytest.raises(EngineBroken):
        hunt(suspects, ["last"], {"last"})


def test_a_step_that_runs_proves_the_engine() -> None:
    suspects = Suspects()
    for n in range(3 * ALONE_LIMIT):
        assert hunt(suspects, [f"s{n}"], {f"s{n}"}) == ([f"s{n}"], 1)
        assert suspects.ran() == []


def test_a_step_that_ended_is_not_looked_for_any_more() -> None:
    suspects = Suspects()
    suspects.raised(["a", "b", "c", "d"])
    suspects.forget("a")
    assert suspects.turn == ("b",)
    assert suspects.raised(["b"]) == []
    suspects.forget("b")
    assert suspects.ran() == []
    assert suspects.turn is None


def test_those_who_have_nothing_to_run_are_passed_over() -> None:
    suspects = Suspects()
    suspects.raised(["a", "b", "c"])
    assert suspects.idle() == []
    assert suspects.turn == ("b", "c")
    assert suspects.ran() == []
    assert suspects.turn is None
