import pytest

from bench.lib.stats import interleave, paired_ratio, rounded, spread


def test_variants_take_turns():
    order: list[str] = []
    told: list[tuple[int, str]] = []

    def run(name: str) -> int:
        order.append(name)
        return len(order)

    results = interleave(
        {"a": lambda: run("a"), "b": lambda: run("b")}, 3, lambda at, name: told.append((at, name))
    )
    assert order == ["a", "b", "a", "b", "a", "b"]
    assert results == {"a": [1, 3, 5], "b": [2, 4, 6]}
    assert told == [(0, "a"), (0, "b"), (1, "a"), (1, "b"), (2, "a"), (2, "b")]


def test_spread_is_the_median_and_its_bounds():
    found = spread([3.0, 1.0, 2.0])
    assert (found.median, found.low, found.high, found.count) == (2.0, 1.0, 3.0, 3)
    assert found.relative == 1.0
    assert spread([0.0, 0.0]).relative == 0.0


def test_spread_of_nothing_is_refused():
    with pytest.raises(ValueError, match="nothing was measured"):
        spread([])


def test_a_slow_round_leaves_the_ratio():
    assert paired_ratio([2.0, 20.0], [1.0, 10.0]).relative == 0.0
    with pytest.raises(ValueError, match="1 rounds against 2"):
        paired_ratio([1.0], [1.0, 2.0])


def test_figures_keep_four_digits():
    assert rounded(1234.56) == 1235.0
    assert rounded(0.000123456) == 0.0001235
