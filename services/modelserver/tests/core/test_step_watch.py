"""A step that never ends is found; a slow one, and a process that was paused, are left alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hypothesis import given
from hypothesis import strategies as st

from services.modelserver.core.step_watch import LOOKS, StepWatch

LIMIT_S = 60.0
SPACES = st.lists(st.floats(0.0, 1000.0), min_size=1, max_size=60)


def looks(watch: StepWatch, steps: Sequence[int | None], start: float = 100.0) -> Iterator[bool]:
    """What each look says, made at the watch's pace."""
    for number, step in enumerate(steps):
        yield watch.look(step, start + number * watch.every_s)


def test_a_step_that_goes_on_for_the_limit_is_given_up_and_not_before() -> None:
    said = list(looks(StepWatch(LIMIT_S), [7] * (LOOKS + 2)))
    assert said == [False] * LOOKS + [True, True]


def test_steps_that_end_are_never_given_up_however_many_there_are() -> None:
    assert not any(looks(StepWatch(LIMIT_S), list(range(5 * LOOKS))))
    long_each = [number // (LOOKS - 1) for number in range(5 * LOOKS)]
    assert not any(looks(StepWatch(LIMIT_S), long_each))


def test_an_idle_engine_is_never_given_up() -> None:
    assert not any(looks(StepWatch(LIMIT_S), [None] * (5 * LOOKS)))


def test_an_idle_moment_begins_anew() -> None:
    almost: list[int | None] = [3] * LOOKS
    assert not any(looks(StepWatch(LIMIT_S), [*almost, None, *almost]))


def test_the_time_of_a_pause_is_not_the_steps() -> None:
    watch = StepWatch(LIMIT_S)
    assert not watch.look(1, 0.0)
    assert not watch.look(1, 10 * LIMIT_S)
    assert not watch.look(1, 10 * LIMIT_S + watch.every_s)


@given(spaces=SPACES)
def test_a_step_is_given_up_only_after_half_of_all_looks_and_the_limit(spaces: list[float]) -> None:
    watch = StepWatch(LIMIT_S)
    now, made = 0.0, 0
    gave_up = watch.look(1, now)
    for space in spaces:
        if gave_up:
            break
        now, made = now + space, made + 1
        gave_up = watch.look(1, now)
    if gave_up:
        assert made >= LOOKS / 2 and now >= LIMIT_S - 1e-6
