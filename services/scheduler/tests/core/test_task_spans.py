from hypothesis import given
from hypothesis import strategies as st

from libs.units.durations import DurationSketch
from services.scheduler.core.task_spans import TaskSpans

whole_seconds = st.integers(0, 1000).map(float)
steps = st.lists(st.tuples(st.sampled_from(["", "a", "b"]), whole_seconds, whole_seconds))


def test_a_task_lasts_from_its_first_steps_beginning_to_its_last_ones_end() -> None:
    spans = TaskSpans()
    assert spans.extend("a", 100.0, 110.0) == (None, 10.0)
    assert spans.extend("a", 130.0, 150.0) == (10.0, 50.0)
    assert spans.extend("a", 90.0, 95.0) == (50.0, 60.0)
    assert spans.extend("a", 120.0, 125.0) == (60.0, 60.0)


def test_a_line_without_a_trace_is_a_task_of_its_own() -> None:
    spans = TaskSpans()
    assert spans.extend("", 0.0, 3.0) == (None, 3.0)
    assert spans.extend("", 0.0, 4.0) == (None, 4.0)


@given(steps, st.integers(0, 50))
def test_the_times_are_those_of_the_whole_however_often_they_were_written(
    taken: list[tuple[str, float, float]], written_at: int
) -> None:
    """Differences go to the record at any moment; the rest is in another one."""
    spans, record, buffer = TaskSpans(), DurationSketch(), DurationSketch()
    for number, (trace, at, length) in enumerate(taken):
        before_s, now_s = spans.extend(trace, at, at + length)
        if before_s is not None:
            buffer.remove(before_s)
        buffer.add(now_s)
        if number == written_at:
            record.merge(buffer)
            buffer = DurationSketch()
    record.merge(buffer)
    expected = DurationSketch()
    for trace, _, length in taken:
        if not trace:
            expected.add(length)
    for trace in {each for each, *_ in taken if each}:
        own = [(at, at + length) for name, at, length in taken if name == trace]
        expected.add(max(end for _, end in own) - min(at for at, _ in own))
    assert record.to_list() == expected.to_list()
