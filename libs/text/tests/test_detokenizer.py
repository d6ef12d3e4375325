"""Streamed text is the whole text, and nothing sent is taken back."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from libs.text import Tokenizer


def streamed(tokenizer: Tokenizer, pieces: Sequence[Sequence[int]]) -> list[str]:
    detokenizer = tokenizer.detokenizer()
    return [*(detokenizer.push(piece) for piece in pieces), detokenizer.finish()]


def pieces_of(ids: Sequence[int], sizes: Sequence[int]) -> list[Sequence[int]]:
    pieces, at = [], 0
    for size in sizes:
        pieces.append(ids[at : at + size])
        at += size
    return [*pieces, ids[at:]]


@given(
    ids=st.lists(st.one_of(st.integers(0, 49_151), st.integers(0, 300)), max_size=40),
    sizes=st.lists(st.integers(0, 4), max_size=20),
)
@settings(deadline=None, max_examples=300)
def test_any_ids_of_a_byte_vocabulary(demo: Tokenizer, ids: list[int], sizes: list[int]) -> None:
    assert "".join(streamed(demo, pieces_of(ids, sizes))) == demo.decode(ids)


@given(
    ids=st.lists(st.one_of(st.integers(0, 265), st.integers(220, 265)), max_size=30),
    sizes=st.lists(st.integers(0, 4), max_size=20),
)
@settings(deadline=None, max_examples=300)
def test_any_ids_with_byte_fallback(fallback: Tokenizer, ids: list[int], sizes: list[int]) -> None:
    assert "".join(streamed(fallback, pieces_of(ids, sizes))) == fallback.decode(ids)


@pytest.mark.parametrize("name", ["demo", "fallback"])
@pytest.mark.parametrize("text", ["a\U0001f600b", "\u4f60\u597d a", "e\u0301 a", "ab ab.", " a"])
def test_characters_of_many_tokens(name: str, text: str, request: pytest.FixtureRequest) -> None:
    tokenizer: Tokenizer = request.getfixturevalue(name)
    ids = tokenizer.encode(text)
    pieces = streamed(tokenizer, [[token] for token in ids])
    assert "".join(pieces) == tokenizer.decode(ids) == text
    assert "\ufffd" not in "".join(pieces)


def test_half_a_character_waits_for_the_rest(demo: Tokenizer) -> None:
    ids = demo.encode("\U0001f600")
    assert len(ids) > 1
    assert streamed(demo, [ids[:1], ids[1:]]) == ["", "\U0001f600", ""]


def test_half_a_character_at_the_end_is_a_replacement(demo: Tokenizer) -> None:
    ids = demo.encode("\U0001f600")[:1]
    assert streamed(demo, [ids]) == ["", "\ufffd"]


def test_special_tokens_give_no_text(demo: Tokenizer) -> None:
    assert "".join(streamed(demo, [[1], demo.encode("a"), [2]])) == "a"
