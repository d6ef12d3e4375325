import math

from hypothesis import given
from hypothesis import strategies as st

from libs.units.durations import DurationSketch

durations = st.lists(st.floats(0.001, 1e6), min_size=1, max_size=60)


def sketch_of(seconds: list[float]) -> DurationSketch:
    sketch = DurationSketch()
    for each in seconds:
        sketch.add(each)
    return sketch


@given(durations, st.sampled_from([0.0, 0.01, 0.5, 0.9, 0.99, 1.0]))
def test_a_quantile_is_within_five_percent_of_the_true_one(
    seconds: list[float], share: float
) -> None:
    true = sorted(seconds)[max(1, math.ceil(share * len(seconds))) - 1]
    assert abs(sketch_of(seconds).quantile(share) - true) <= 0.05 * true


@given(durations, durations)
def test_merging_is_the_same_as_counting_all_in_one(one: list[float], other: list[float]) -> None:
    merged = sketch_of(one)
    merged.merge(sketch_of(other))
    assert merged.to_list() == sketch_of(one + other).to_list()


@given(st.lists(st.floats(0, 1e12), max_size=500))
def test_the_list_form_is_bounded_and_comes_back(seconds: list[float]) -> None:
    numbers = sketch_of(seconds).to_list()
    assert len(numbers) <= 2 * 243
    assert DurationSketch.from_list(numbers).to_list() == numbers
    assert DurationSketch.from_list(numbers).count == len(seconds)


def test_an_empty_sketch_has_zeros() -> None:
    quantiles = DurationSketch().quantiles()
    assert (quantiles.p50, quantiles.p99, quantiles.count) == (0.0, 0.0, 0)


@given(durations, durations)
def test_what_a_difference_takes_back_is_gone_once_it_is_merged(
    kept: list[float], taken_back: list[float]
) -> None:
    whole, difference = sketch_of(kept + taken_back), DurationSketch()
    for each in taken_back:
        difference.remove(each)
    whole.merge(difference)
    assert whole.to_list() == sketch_of(kept).to_list()
