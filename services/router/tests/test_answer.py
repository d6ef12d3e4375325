"""Text of a choice: the sum of the pieces is the whole, wherever the pieces end."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from libs.text import Tokenizer, load_tokenizer
from services.router.answer import Answer, Scored
from services.router.tests.tiny_model import make_tiny_model


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder: Path = tmp_path_factory.mktemp("answer") / "tiny"
    make_tiny_model(folder)
    return load_tokenizer(folder, folder)


def say(
    tokenizer: Tokenizer, text: str, stops: list[str], cuts: list[int], scored: bool
) -> tuple[str, list[str], Answer]:
    answer = Answer(tokenizer, stops)
    tokens = tokenizer.encode(text)
    said, told = "", []
    for begin, end in zip([0, *cuts], [*cuts, len(tokens)], strict=True):
        part = tokens[begin:end]
        piece = answer.push(part, [Scored(token, -1.0, []) for token in part] if scored else ())
        said += piece.text
        told += [entry.token for entry in piece.logprobs]
    rest = answer.finish()
    return said + rest.text, told + [e.token for e in rest.logprobs], answer


@settings(deadline=None, max_examples=150)
@given(
    text=st.text("abcé✓ ", max_size=30),
    stops=st.lists(st.text("abc✓", min_size=1, max_size=4), max_size=3),
    cuts=st.lists(st.integers(0, 60), max_size=6).map(sorted),
    scored=st.booleans(),
)
def test_pieces_add_up_to_the_text_before_the_first_stop(
    tokenizer: Tokenizer, text: str, stops: list[str], cuts: list[int], scored: bool
) -> None:
    length = len(tokenizer.encode(text))
    cuts = [min(cut, length) for cut in cuts]
    said, told, answer = say(tokenizer, text, stops, cuts, scored)
    whole, whole_told, at_once = say(tokenizer, text, stops, [], scored)
    stopped = answer.stopped
    assert said == whole
    assert told == whole_told
    assert answer.tokens == at_once.tokens
    if scored:
        assert len(told) == answer.tokens
    assert stopped == any(stop in text for stop in stops)
    if not stopped:
        assert said == text
    else:
        assert not any(stop in said for stop in stops)
        assert text.startswith(said)


@pytest.mark.parametrize("cuts", [[], [4, 5], [7], [1, 2, 3, 4, 5, 6, 7, 8]])
@pytest.mark.parametrize("scored", [False, True])
def test_the_token_that_completes_the_stop_string_is_the_last_one_that_counts(
    tokenizer: Tokenizer, cuts: list[int], scored: bool
) -> None:
    said, told, answer = say(tokenizer, "abcSTOPdef", ["STOP"], cuts, scored)
    assert answer.stopped
    assert said == "abc"
    assert answer.tokens == len("abcSTOP")
    assert told == (list("abcSTOP") if scored else [])


@pytest.mark.parametrize("cuts", [[], [5], [1, 2, 3, 4, 5, 6, 7, 8]])
@pytest.mark.parametrize(
    ("min_tokens", "said", "sampled"),
    [(0, "ab", 4), (3, "ab", 4), (4, "ab.", 5), (5, "ab..", 6), (6, "ab....cd", 8)],
)
def test_a_stop_string_counts_when_it_ends_after_min_tokens(
    tokenizer: Tokenizer, cuts: list[int], min_tokens: int, said: str, sampled: int
) -> None:
    """Each character is a token here; a stop string may begin before and end after."""
    answer = Answer(tokenizer, [".."], min_tokens)
    tokens = tokenizer.encode("ab....cd")
    told = "".join(
        answer.push(tokens[begin:end]).text
        for begin, end in zip([0, *cuts], [*cuts, len(tokens)], strict=True)
    )
    assert told + answer.finish().text == said
    assert (answer.stopped, answer.tokens) == (sampled < len(tokens), sampled)
