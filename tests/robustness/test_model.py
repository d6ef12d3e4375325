"""The checker finds each way in which a history can be wrong, and no fault in a right one."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import replace

import pytest

from tests.robustness.campaign import resume_s
from tests.robustness.faults import Fault, Kind
from tests.robustness.history import (
    Created,
    Delivered,
    Event,
    Expected,
    History,
    Injected,
    Line,
    Polled,
    Read,
    Unclear,
    Usage,
)
from tests.robustness.model import Broken, check

BATCH = "batch_1"
ANSWERS: dict[str, str | None] = {"a": "red", "b": "blue", "bad": None}


def output(name: str, text: str) -> Line:
    usage = {
        "prompt_tokens": 10,
        "completion_tokens": 2,
        "prompt_tokens_details": {"cached_tokens": 4},
    }
    body = {"choices": [{"message": {"content": text}}], "usage": usage}
    return Line(json.dumps({"custom_id": name, "response": {"body": body}}), is_error=False)


def error(name: str, code: str = "x") -> Line:
    return Line(json.dumps({"custom_id": name, "error": {"code": code}}), is_error=True)


USAGE = Usage(20, 8, 4)
RED, BLUE, BAD = output("a", "red"), output("b", "blue"), error("bad")


def polled(at: float, status: str, completed: int, failed: int, total: int = 3) -> Polled:
    return Polled(at, BATCH, status, total, completed, failed)


def good() -> list[Event]:
    return [
        Created(0.0, BATCH),
        polled(0.1, "validating", 0, 0, total=0),
        polled(0.2, "in_progress", 0, 1),
        Read(0.2, BATCH, 0, (BAD,)),
        polled(0.5, "in_progress", 1, 1),
        Read(0.5, BATCH, 1, (RED,)),
        polled(0.8, "finalizing", 2, 1),
        polled(0.9, "completed", 2, 1),
        Read(0.9, BATCH, 0, (BAD, RED, BLUE)),
        Delivered(1.0, BATCH, (RED, BLUE, BAD), USAGE),
        polled(1.1, "completed", 2, 1),
    ]


def history(events: Iterable[Event], answers: dict[str, str | None] = ANSWERS) -> History:
    return History(list(events), {BATCH: Expected(answers, within_s=10.0)}, ended_at=1.2)


def delivered(*lines: Line, usage: Usage = USAGE) -> list[Event]:
    """The good history with other files."""
    return [Delivered(e.at, BATCH, lines, usage) if isinstance(e, Delivered) else e for e in good()]


def inserted(at: int, *events: Event) -> list[Event]:
    return [*good()[:at], *events, *good()[at:]]


def rules(events: Iterable[Event]) -> set[Broken]:
    return {violation.rule for violation in check(history(events))}


def test_a_right_history_breaks_no_rule() -> None:
    assert check(history(good())) == []


def test_a_batch_whose_lines_all_failed_has_no_usage() -> None:
    events: list[Event] = [
        Created(0.0, BATCH),
        polled(0.5, "completed", 0, 1, total=1),
        Delivered(1.0, BATCH, (BAD,), Usage()),
    ]
    assert check(history(events, {"bad": None})) == []


WRONG: dict[str, tuple[Callable[[], list[Event]], Broken]] = {
    "a line is in no file": (lambda: delivered(RED, BAD), Broken.LOST),
    "a line is in the output file twice": (lambda: delivered(RED, RED, BLUE, BAD), Broken.DOUBLED),
    "a line is in both files": (lambda: delivered(RED, BLUE, BAD, error("b")), Broken.DOUBLED),
    "a line is recorded twice": (
        lambda: inserted(9, Read(0.95, BATCH, 3, (RED,))),
        Broken.DOUBLED,
    ),
    "answers are swapped": (
        lambda: delivered(output("a", "blue"), output("b", "red"), BAD),
        Broken.SWAPPED,
    ),
    "an answer to nobody": (lambda: delivered(RED, BLUE, BAD, error("z")), Broken.SWAPPED),
    "a line that can be answered failed": (lambda: delivered(RED, error("b"), BAD), Broken.FAILED),
    "a line that must fail is answered": (
        lambda: delivered(RED, BLUE, output("bad", "green")),
        Broken.FAILED,
    ),
    "a recorded line is another when read again": (
        lambda: inserted(6, Read(0.6, BATCH, 0, (BAD, replace(RED, text=RED.text + " ")))),
        Broken.CHANGED,
    ),
    "recorded lines change their places": (
        lambda: inserted(6, Read(0.6, BATCH, 0, (RED, BAD))),
        Broken.CHANGED,
    ),
    "a recorded line is generated again": (
        lambda: delivered(replace(RED, text=RED.text + " "), BLUE, BAD),
        Broken.CHANGED,
    ),
    "recorded lines vanish": (
        lambda: inserted(6, Read(0.6, BATCH, 0, (BAD,), known=2)),
        Broken.LOST,
    ),
    "its files cannot be read": (
        lambda: [event for event in good() if not isinstance(event, Delivered)],
        Broken.HUNG,
    ),
    "a count goes down": (lambda: inserted(6, polled(0.6, "in_progress", 0, 1)), Broken.COUNTS),
    "the total changes": (lambda: inserted(6, polled(0.6, "in_progress", 1, 1, 4)), Broken.COUNTS),
    "more lines than all": (
        lambda: inserted(6, polled(0.6, "in_progress", 3, 1)),
        Broken.COUNTS,
    ),
    "counts fall short in the end": (
        lambda: [*good()[:7], polled(0.9, "completed", 1, 1)],
        Broken.COUNTS,
    ),
    "counts are not what the files hold": (
        lambda: [*good()[:-1], polled(1.1, "completed", 1, 2)],
        Broken.COUNTS,
    ),
    "a terminal state changes": (lambda: [*good(), polled(1.2, "failed", 2, 1)], Broken.STATE),
    "a terminal state is left": (
        lambda: [*good(), polled(1.2, "in_progress", 2, 1)],
        Broken.STATE,
    ),
    "a state goes back": (lambda: inserted(7, polled(0.85, "in_progress", 2, 1)), Broken.STATE),
    "a batch ends as failed": (
        lambda: [Created(0.0, BATCH), polled(0.5, "failed", 0, 0, total=0)],
        Broken.STATE,
    ),
    "tokens are counted twice": (
        lambda: delivered(RED, BLUE, BAD, usage=Usage(30, 12, 6)),
        Broken.USAGE,
    ),
    "it never ends": (lambda: good()[:6], Broken.HUNG),
    "it ends too late": (
        lambda: [Created(0.0, BATCH), polled(99.0, "completed", 2, 1)],
        Broken.HUNG,
    ),
    "an answer that says nothing": (
        lambda: [*good(), Unclear(1.2, "GET /v1/batches", "500")],
        Broken.UNCLEAR,
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_it_finds(name: str) -> None:
    make, rule = WRONG[name]
    assert rule in rules(make())


def cancelled_history(last: Line) -> list[Event]:
    return [
        Created(0.0, BATCH),
        polled(0.5, "in_progress", 1, 1),
        Read(0.5, BATCH, 0, (BAD, RED)),
        polled(0.6, "cancelling", 1, 1),
        polled(0.9, "cancelled", 1, 2),
        Delivered(1.0, BATCH, (RED, BAD, last), Usage(10, 4, 2)),
    ]


def test_a_cancelled_batch_keeps_its_lines_and_ends_the_others_as_cancelled() -> None:
    asked = {BATCH: Expected(ANSWERS, within_s=10.0, cancelled=True)}
    rest = error("b", "batch_cancelled")
    assert check(History(cancelled_history(rest), asked, 1.2)) == []
    (found,) = check(History(cancelled_history(error("b")), asked, 1.2))
    assert found.rule is Broken.FAILED
    # Nobody asked for it.
    assert {Broken.STATE, Broken.FAILED} <= rules(cancelled_history(rest))


def test_a_read_that_breaks_off_may_be_short() -> None:
    cut = Read(0.6, BATCH, 0, (BAD,), known=2, whole=False)
    assert check(history(inserted(6, cut))) == []


def test_a_hole_in_what_was_read_is_the_recorders_fault() -> None:
    with pytest.raises(ValueError, match="skipped"):
        check(history(inserted(2, Read(0.2, BATCH, 1, (RED,)))))


def test_the_time_to_resume_is_that_of_the_next_line_counted() -> None:
    events = history(good())
    assert resume_s(events, 0.3) == pytest.approx(0.2)
    assert resume_s(events, 0.85) == pytest.approx(0.05)  # no line is left: the end counts
    assert resume_s(events, 2.0) is None


def expired_history(last: Line, *before: Event) -> list[Event]:
    """A line was answered, and the other one was not before the batch expired."""
    usage = Usage(10, 4, 2)
    return [
        *before,
        Created(0.0, BATCH),
        polled(0.5, "in_progress", 1, 1),
        Read(0.5, BATCH, 0, (BAD, RED)),
        polled(0.9, "expired", 1, 2),
        Delivered(1.0, BATCH, (RED, BAD, last), usage),
        polled(1.1, "expired", 1, 2),
    ]


def test_a_batch_of_a_short_window_may_expire_once_a_clock_has_jumped() -> None:
    may = {BATCH: Expected(ANSWERS, within_s=10.0, expires=True)}
    rest = error("b", "batch_expired")
    jump = Injected(0.1, Fault(Kind.CLOCK, ("scheduler-1",), 0.0, 0.0, 1.0, 3600.0))
    kill = Injected(0.1, Fault(Kind.KILL, ("scheduler-1",), 0.0, 0.0))
    assert check(History(expired_history(rest, jump), may, 1.2)) == []
    (found,) = check(History(expired_history(error("b"), jump), may, 1.2))
    assert found.rule is Broken.FAILED
    (found,) = check(History(expired_history(error("b", "batch_cancelled"), jump), may, 1.2))
    assert found.rule is Broken.FAILED
    both = {Broken.STATE, Broken.FAILED}
    assert {each.rule for each in check(History(expired_history(rest, kill), may, 1.2))} == both
    not_this_one = {BATCH: Expected(ANSWERS, within_s=10.0)}
    early = check(History(expired_history(rest, jump), not_this_one, 1.2))
    assert {each.rule for each in early} == both
