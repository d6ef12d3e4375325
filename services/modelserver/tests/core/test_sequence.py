"""When a sequence ends, and what it names its blocks."""

import pytest

from libs.hashing import content_hashes, kv_keys
from services.modelserver.herd.core.plan import FinishReason
from services.modelserver.herd.core.sequence import Limits
from services.modelserver.tests.core.factories import NAMESPACE, SALT, make_sequence, stream

EOS, STOP, OTHER = 1, 2, 3


def ends_with(limits: Limits, tokens: list[int]) -> list[FinishReason | None]:
    seq = make_sequence("a", "x:5", limits=limits)
    return [seq.append(token) for token in tokens]


def limits(max_tokens: int, min_tokens: int = 0, *, ignore_eos: bool = False) -> Limits:
    return Limits(
        max_tokens, min_tokens, frozenset({EOS}), frozenset({STOP}), ignore_eos=ignore_eos
    )


@pytest.mark.parametrize("token", [EOS, STOP])
def test_a_stop_token_ends_it(token: int) -> None:
    assert ends_with(limits(9), [OTHER, token]) == [None, FinishReason.STOP]


def test_max_tokens_end_it() -> None:
    assert ends_with(limits(2), [OTHER, OTHER]) == [None, FinishReason.LENGTH]


def test_a_stop_token_in_the_last_place_is_a_stop() -> None:
    assert ends_with(limits(2), [OTHER, EOS]) == [None, FinishReason.STOP]


def test_ignore_eos_ignores_eos_and_nothing_else() -> None:
    reasons = ends_with(limits(9, ignore_eos=True), [EOS, STOP])
    assert reasons == [None, FinishReason.STOP]


def test_no_stop_token_counts_before_min_tokens() -> None:
    reasons = ends_with(limits(9, min_tokens=3), [EOS, STOP, EOS])
    assert reasons == [None, None, FinishReason.STOP]


@pytest.mark.parametrize(("most", "least"), [(0, 0), (4, 5), (4, -1)])
def test_limits_that_make_no_sense_are_refused(most: int, least: int) -> None:
    with pytest.raises(ValueError, match="_tokens"):
        Limits(most, least)


def test_an_empty_prompt_is_refused() -> None:
    with pytest.raises(ValueError, match="empty prompt"):
        make_sequence("a", [])


def test_blocks_of_output_are_named_like_those_of_a_prompt() -> None:
    seq = make_sequence("a", "x:60", max_tokens=40)
    for token in stream("y", 36):
        seq.append(token)
    tokens = stream("x", 60) + stream("y", 36)
    assert list(seq.content_hashes) == content_hashes(SALT, tokens)
    assert list(seq.keys) == kv_keys(NAMESPACE, content_hashes(SALT, tokens))
    assert [t for block in seq.block_tokens for t in block] == tokens


@pytest.mark.parametrize(
    ("prompt", "most", "blocks"), [(1, 1, 1), (32, 1, 1), (32, 2, 2), (31, 2, 1)]
)
def test_blocks_it_can_ever_need(prompt: int, most: int, blocks: int) -> None:
    assert make_sequence("a", f"x:{prompt}", most).max_blocks == blocks


def test_the_table_is_handed_out_without_a_copy_until_it_changes() -> None:
    seq = make_sequence("a", "x:60")
    seq.add_block(4)
    first = seq.block_table
    assert seq.block_table is first
    seq.add_block(5)
    assert (first, seq.block_table) == ((4,), (4, 5))
