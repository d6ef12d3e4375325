"""How a batch's progress reads."""

from __future__ import annotations

from services.cli.core.progress import Meter
from services.cli.output import describe


def test_while_nothing_was_generated_there_is_a_time_and_no_rate() -> None:
    meter = Meter()
    meter.observe(0.0, completed=0, failed=0, total=16, tokens=0, cost=0.0)
    waiting = meter.observe(7.0, completed=0, failed=0, total=16, tokens=0, cost=0.0)
    assert describe(waiting) == "7.0 s so far"
    going = meter.observe(10.0, completed=8, failed=1, total=16, tokens=50, cost=0.25)
    assert describe(going) == "1 failed  5.0 tokens/s  $0.2500  7.8 s to go"
