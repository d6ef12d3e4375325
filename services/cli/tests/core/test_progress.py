"""Numbers of a progress bar."""

from __future__ import annotations

from services.cli.core.progress import Meter


def test_time_counts_from_when_the_lines_were_known() -> None:
    meter = Meter()
    early = meter.observe(100.0, completed=0, failed=0, total=0, tokens=0, cost=0.0)
    assert (early.tokens_per_s, early.eta_s) == (0.0, None)
    meter.observe(200.0, completed=0, failed=0, total=10, tokens=0, cost=0.0)
    later = meter.observe(210.0, completed=4, failed=1, total=10, tokens=50, cost=0.25)
    assert later.done == 5
    assert later.failed == 1
    assert later.tokens_per_s == 5.0
    assert later.eta_s == 10.0
    assert later.cost == 0.25


def test_the_first_lines_to_end_foretell_nothing() -> None:
    meter = Meter()
    meter.observe(0.0, completed=0, failed=0, total=16, tokens=0, cost=0.0)
    early = meter.observe(3.0, completed=3, failed=0, total=16, tokens=8, cost=0.1)
    assert (early.elapsed_s, early.eta_s) == (3.0, None)
    assert meter.observe(4.0, completed=4, failed=0, total=16, tokens=8, cost=0.1).eta_s == 12.0


def test_when_all_is_done_nothing_is_to_go() -> None:
    meter = Meter()
    meter.observe(0.0, completed=0, failed=0, total=2, tokens=0, cost=0.0)
    assert meter.observe(9.0, completed=2, failed=0, total=2, tokens=8, cost=0.1).eta_s is None
