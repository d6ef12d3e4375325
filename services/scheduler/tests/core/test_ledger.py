import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.scheduler.core.ledger import Clocks, Ledger, StepUse
from services.scheduler.core.line_set import LineSet
from services.scheduler.core.usage import Usage
from services.scheduler.core.watermark import Watermark

USE = StepUse(run_id="run", engine_s=2.0, prompt_tokens=10, cached_tokens=4, completion_tokens=3)


def ledger_with(*runs: str) -> Ledger:
    ledger = Ledger()
    for run in runs:
        ledger.open_run(run)
    return ledger


@given(st.lists(st.integers(1, 30), max_size=80))
def test_a_watermark_takes_each_number_once(numbers: list[int]) -> None:
    mark, seen = Watermark(), set[int]()
    for number in numbers:
        assert mark.add(number) == (number not in seen)
        seen.add(number)
        assert mark.level == next(n for n in range(32) if n + 1 not in seen)


@given(st.lists(st.integers(1, 30), max_size=30), st.integers(0, 30), st.integers(1, 30))
def test_raising_a_watermark_equals_seeing_everything_below(
    numbers: list[int], level: int, probe: int
) -> None:
    raised, filled = Watermark(), Watermark()
    for number in numbers:
        raised.add(number)
        filled.add(number)
    raised.raise_to(level)
    for number in range(1, level + 1):
        filled.add(number)
    assert raised.level == filled.level
    assert raised.add(probe) == filled.add(probe)


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(1, 20)), max_size=100))
def test_a_report_is_booked_once_whatever_comes_again(reports: list[tuple[str, int]]) -> None:
    ledger = ledger_with("run")
    for incarnation, sequence in reports:
        ledger.book(incarnation, sequence, USE)
    assert ledger.use_of("run").busy_engine_s == 2.0 * len(set(reports))
    assert ledger.use_of("run").computed_tokens == (10 - 4 + 3) * len(set(reports))


@given(st.integers(0, 40), st.integers(0, 40), st.randoms(use_true_random=False))
def test_a_new_leader_books_what_the_written_book_lacks(
    written_at: int, lost_at: int, chance: random.Random
) -> None:
    """Booked by the first, some of it written; everything not acknowledged is sent again."""
    first = ledger_with("run")
    for sequence in range(1, written_at + 1):
        first.book("life", sequence, USE)
    book = first.snapshot()
    first.written(book)
    for sequence in range(written_at + 1, lost_at + 1):
        first.book("life", sequence, USE)
    second = Ledger(book)
    again = list(range(chance.randint(0, written_at) + 1, 42))
    for sequence in again:
        second.book("life", sequence, USE)
    assert second.use_of("run").busy_engine_s == 2.0 * 41


def test_only_written_reports_are_acknowledged() -> None:
    ledger = ledger_with("run")
    ledger.book("life", 1, USE)
    assert ledger.dirty and ledger.acknowledged("life") == 0
    book = ledger.snapshot()
    ledger.book("life", 2, USE)
    ledger.written(book)
    assert ledger.acknowledged("life") == 1
    assert ledger.dirty


def test_what_another_leader_acknowledged_is_booked() -> None:
    ledger = ledger_with("run")
    ledger.resume("life", 56)
    assert ledger.seen("life") == 56
    assert ledger.book("life", 57, USE)
    assert ledger.snapshot().booked == {"life": 57}


def test_a_single_request_and_a_closed_run_are_charged_to_nobody() -> None:
    ledger = ledger_with("run", "other")
    ledger.close_run("other")
    assert ledger.book("life", 1, StepUse(run_id="", engine_s=1.0))
    assert ledger.book("life", 2, StepUse(run_id="other", engine_s=1.0))
    assert ledger.use_of("run").busy_engine_s == 0.0
    assert ledger.runs() == ["run"]


def test_idle_time_is_split_over_the_active_runs() -> None:
    ledger = ledger_with("one", "two")
    assert ledger.clock("life", Clocks(100.0, 50.0), ["one", "two"]) == 0.0
    assert ledger.clock("life", Clocks(110.0, 54.0), ["one", "two"]) == 6.0
    assert ledger.use_of("one").idle_engine_s == ledger.use_of("two").idle_engine_s == 3.0


def test_time_without_a_run_is_charged_to_nobody_later() -> None:
    ledger = ledger_with("run")
    ledger.clock("life", Clocks(0.0, 0.0), [])
    ledger.clock("life", Clocks(1000.0, 0.0), [])
    ledger.clock("life", Clocks(1001.0, 0.5), ["run"])
    assert ledger.use_of("run").idle_engine_s == 0.5


def test_clocks_read_within_an_engine_step_charge_no_idle_time_in_the_end() -> None:
    ledger = ledger_with("run")
    ledger.clock("life", Clocks(100.0, 50.0), ["run"])
    # A step of 4 s, read every second: what it took is told when it has ended.
    for read in (101.0, 102.0, 103.0):
        ledger.clock("life", Clocks(read, 50.0), ["run"])
    ledger.clock("life", Clocks(104.5, 54.0), ["run"])
    assert ledger.use_of("run").idle_engine_s == 0.5


def test_clocks_that_arrive_late_change_nothing() -> None:
    ledger = ledger_with("run")
    ledger.clock("life", Clocks(10.0, 1.0), ["run"])
    ledger.clock("life", Clocks(20.0, 1.0), ["run"])
    assert ledger.clock("life", Clocks(15.0, 1.0), ["run"]) == 0.0
    assert ledger.clock("life", Clocks(21.0, 1.0), ["run"]) == 1.0


@given(st.lists(st.tuples(st.floats(0.01, 5), st.floats(0, 1)), max_size=50))
def test_busy_and_idle_are_all_of_the_time(parts: list[tuple[float, float]]) -> None:
    ledger = ledger_with("run")
    ledger.clock("life", Clocks(1.0, 0.5), ["run"])
    uptime, busy = 1.0, 0.5
    for sequence, (wall, share) in enumerate(parts, start=1):
        uptime += wall
        busy += wall * share
        ledger.book("life", sequence, StepUse(run_id="run", engine_s=wall * share))
        ledger.clock("life", Clocks(uptime, busy), ["run"])
    use = ledger.use_of("run")
    assert use.busy_engine_s + use.idle_engine_s == pytest.approx(uptime - 1.0)


def test_what_a_dead_server_had_not_reported_is_busy_time_of_the_runs_that_go_on() -> None:
    ledger = ledger_with("one", "two")
    ledger.clock("server", Clocks(0.0, 0.0), ["one", "two"])
    ledger.book("server", 1, StepUse(run_id="one", engine_s=2.0))
    ledger.clock("server", Clocks(10.0, 8.0), ["one", "two"])
    assert ledger.alive(["server"], ["one", "two"]) == 0.0
    assert ledger.alive([], ["one", "two"]) == 6.0
    assert ledger.alive([], ["one", "two"]) == 0.0
    assert ledger.use_of("one").busy_engine_s == 5.0
    assert ledger.use_of("two").busy_engine_s == 3.0
    assert ledger.use_of("one").idle_engine_s == ledger.use_of("two").idle_engine_s == 1.0


def test_a_server_that_was_only_out_of_sight_is_not_charged_twice() -> None:
    ledger = ledger_with("run")
    ledger.clock("server", Clocks(0.0, 0.0), ["run"])
    ledger.clock("server", Clocks(10.0, 8.0), ["run"])
    ledger.alive([], ["run"])
    restored = Ledger(ledger.snapshot())
    for sequence, engine_s in ((1, 5.0), (2, 4.0)):
        restored.book("server", sequence, StepUse(run_id="run", engine_s=engine_s))
    assert restored.use_of("run").busy_engine_s == 9.0


def test_what_a_server_did_before_it_was_first_seen_is_charged_to_nobody_when_it_dies() -> None:
    ledger = ledger_with("run")
    ledger.clock("server", Clocks(100.0, 60.0), ["run"])
    assert ledger.alive([], ["run"]) == 0.0


@given(st.lists(st.integers(0, 5000), max_size=100), st.integers(0, 5000))
def test_a_line_set_is_a_set(numbers: list[int], probe: int) -> None:
    lines = LineSet()
    expected: set[int] = set()
    for number in numbers:
        assert lines.add(number) == (number not in expected)
        expected.add(number)
    assert len(lines) == len(expected)
    assert (probe in lines) == (probe in expected)


def test_usages_add_up_count_by_count() -> None:
    assert Usage(1, 2, 3, 4) + Usage(10, 20, 30, 40) == Usage(11, 22, 33, 44)
