"""Stop strings never leak, wherever the text is cut into pieces."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs.text import StopScanner


def scan(stops: Sequence[str], pieces: Sequence[str]) -> tuple[list[str], str | None]:
    scanner = StopScanner(stops)
    out = [scanner.push(piece) for piece in pieces]
    return [*out, scanner.finish()], scanner.hit


def reference(stops: Sequence[str], text: str) -> tuple[str, str | None]:
    """Reads character by character, as the definition does."""
    for end in range(len(text) + 1):
        ended = [stop for stop in stops if text[:end].endswith(stop)]
        if ended:
            longest = max(ended, key=len)
            return text[: end - len(longest)], longest
    return text, None


def test_a_stop_over_three_pieces_does_not_leak() -> None:
    out, hit = scan(["DEFGHIJ"], ["ABCDE", "FGH", "IJKL"])
    assert (out, hit) == (["ABC", "", "", ""], "DEFGHIJ")


def test_a_start_that_leads_nowhere_is_sent_late_but_whole() -> None:
    assert scan(["END"], ["xEN", "x"]) == (["x", "ENx", ""], None)


def test_a_start_at_the_end_of_the_text_is_text() -> None:
    assert scan(["END"], ["xEN"]) == (["x", "EN"], None)


def test_nothing_comes_after_a_stop() -> None:
    assert scan(["."], ["a.b", "c."]) == (["a", "", ""], ".")


def test_the_stop_completed_first_counts() -> None:
    assert scan(["abcd", "bc"], ["abcd"]) == (["a", ""], "bc")


def test_of_stops_completed_together_the_longest_counts() -> None:
    assert scan(["c", "abc"], ["xab", "c"]) == (["x", "", ""], "abc")


def test_without_stops_all_text_passes_at_once() -> None:
    assert scan([], ["a", "b"]) == (["a", "b", ""], None)


def test_an_empty_stop_is_an_error() -> None:
    with pytest.raises(ValueError, match="not empty"):
        StopScanner(["a", ""])


@given(
    stops=st.lists(st.text("ab", min_size=1, max_size=4), max_size=3),
    pieces=st.lists(st.text("abc", max_size=4), max_size=10),
)
def test_pieces_never_matter(stops: list[str], pieces: list[str]) -> None:
    out, hit = scan(stops, pieces)
    assert ("".join(out), hit) == reference(stops, "".join(pieces))
