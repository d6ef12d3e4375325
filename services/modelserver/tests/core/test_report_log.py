from __future__ import annotations

from services.modelserver.core.report_log import ReportLog


def log_of(count: int) -> ReportLog[str]:
    log: ReportLog[str] = ReportLog()
    for at in range(1, count + 1):
        assert log.append(f"r{at}") == at
    return log


def test_reports_stay_until_they_are_acknowledged() -> None:
    log = log_of(4)
    assert log.after(0, 10) == [(1, "r1"), (2, "r2"), (3, "r3"), (4, "r4")]
    assert log.acknowledge(2) == 2
    assert (log.acknowledged, log.last, len(log)) == (2, 4, 2)
    assert log.after(0, 10) == [(3, "r3"), (4, "r4")]
    assert log.acknowledge(1) == 0


def test_those_behind_a_sequence_are_told_apart_from_those_sent_before() -> None:
    log = log_of(5)
    log.acknowledge(1)
    assert log.after(3, 10) == [(4, "r4"), (5, "r5")]
    assert log.after(3, 1) == [(4, "r4")]
    assert log.after(5, 10) == []


def test_numbers_go_on_after_everything_was_acknowledged() -> None:
    log = log_of(2)
    log.acknowledge(2)
    assert log.append("r3") == 3
    assert log.after(2, 10) == [(3, "r3")]
