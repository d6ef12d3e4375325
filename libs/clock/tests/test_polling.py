from collections.abc import Iterator

from libs.clock.polling import wait_until


def looks(*answers: bool) -> Iterator[bool]:
    yield from answers


def test_it_looks_at_once_and_until_it_holds() -> None:
    answers = looks(False, False, True, False)
    assert wait_until(lambda: next(answers), 60.0, every_s=0.0)
    assert list(answers) == [False]


def test_it_gives_up_when_the_time_is_over() -> None:
    assert not wait_until(lambda: False, 0.01, every_s=0.001)


def test_it_gives_up_at_once_where_there_is_no_hope() -> None:
    answers = looks(False, True)
    assert not wait_until(lambda: next(answers), 60.0, every_s=0.0, hopeless=lambda: True)


def test_what_holds_already_needs_no_hope() -> None:
    assert wait_until(lambda: True, 0.0, every_s=0.0, hopeless=lambda: True)
