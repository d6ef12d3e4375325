"""How a batch's progress reads."""

from __future__ import annotations

from services.cli.core.progress import Meter
from services.cli.output import describe


def test_while_nothing_was_generated_there_is_a_time_and_no_rate() -> None:
    meter = Meter()
    meter.observe(0.0, completed=0, failed=0, total=16, tokens=0, cost=0.0)
    waiting = meter.observe(7.0, completed=0, failed=0, total=16, tokens=0, cost=0.0)
    prompts = "no line has ended yet: prompts are computed first"
    assert describe(waiting, "in_progress") == f"7.0 s so far  {prompts}"
    assert describe(waiting, "cancelling") == "7.0 s so far"
    going = meter.observe(10.0, completed=8, failed=1, total=16, tokens=50, cost=0.25)
    assert describe(going, "in_progress") == "1 failed  5.0 tokens/s  $0.2500  7.8 s to go"


def test_once_a_server_was_lost_the_wait_is_not_told_to_be_for_prompts() -> None:
    meter = Meter()
    meter.observe(0.0, completed=0, failed=0, total=16, tokens=0, cost=0.0)
    lost = meter.observe(7.0, completed=0, failed=0, rerun=16, total=16, tokens=0, cost=0.0)
    told = "a server was lost: 16 lines run again"
    assert describe(lost, "in_progress") == f"7.0 s so far  {told}"
    assert describe(lost, "cancelling") == "7.0 s so far"
    last = meter.observe(10.0, completed=15, failed=0, rerun=1, total=16, tokens=50, cost=0.0)
    assert "a server was lost: 1 line runs again" in describe(last, "in_progress")


def test_lines_that_a_cancel_left_have_not_failed() -> None:
    meter = Meter()
    ended = meter.observe(0.0, completed=5, failed=1, unanswered=10, total=16, tokens=0, cost=0.0)
    assert ended.done == 16
    assert describe(ended, "cancelled") == "1 failed  10 cancelled  0.0 s so far"
    assert describe(ended, "expired") == "1 failed  10 expired  0.0 s so far"
