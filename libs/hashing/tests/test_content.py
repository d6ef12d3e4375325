"""The content hash chain."""

import hashlib
import struct
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs.hashing import (
    BLOCK_TOKENS,
    ContentChain,
    account_salt,
    content_hashes,
    pack,
    unpack,
)

SALT = account_salt("tenant")
TOKENS = st.lists(st.integers(0, 2**32 - 1), max_size=200)


def test_the_chain_is_what_its_definition_says() -> None:
    tokens = list(range(1000, 1064))
    tag = b"\x11impala.content.v1"
    expected = [SALT]
    for at in (0, 32):
        block = struct.pack("<32I", *tokens[at : at + 32])
        expected.append(hashlib.blake2b(tag + expected[-1] + block, digest_size=16).digest())
    assert content_hashes(SALT, tokens) == expected[1:]


@given(TOKENS, st.lists(st.integers(0, 200), max_size=8))
def test_growing_in_any_pieces_gives_the_same_chain(tokens: list[int], cuts: list[int]) -> None:
    chain = ContentChain(SALT)
    grown: list[bytes] = []
    edges = [0, *sorted(min(cut, len(tokens)) for cut in cuts), len(tokens)]
    for start, end in pairwise(edges):
        grown += chain.extend(tokens[start:end])
    assert grown == content_hashes(SALT, tokens)
    assert len(grown) == len(tokens) // BLOCK_TOKENS


@given(st.lists(st.integers(0, 9), min_size=64, max_size=64), st.integers(0, 63))
def test_a_changed_token_changes_its_block_and_all_after_it(tokens: list[int], at: int) -> None:
    changed = list(tokens)
    changed[at] += 1
    same = [
        a == b
        for a, b in zip(content_hashes(SALT, tokens), content_hashes(SALT, changed), strict=True)
    ]
    assert same == [at >= BLOCK_TOKENS, False]


def test_tenants_never_share_a_name() -> None:
    tokens = list(range(64))
    other = content_hashes(account_salt("tenant2"), tokens)
    assert not set(content_hashes(SALT, tokens)) & set(other)


@pytest.mark.parametrize("token", [-1, 2**32])
def test_a_token_outside_u32_is_refused_and_the_chain_goes_on(token: int) -> None:
    chain = ContentChain(SALT)
    chain.extend([1] * 31)
    with pytest.raises(ValueError, match="token ids"):
        chain.extend([token])
    assert chain.extend([1]) == content_hashes(SALT, [1] * 32)


def test_a_salt_of_another_length_is_refused() -> None:
    with pytest.raises(ValueError, match="16 bytes"):
        ContentChain(b"short")


@given(st.lists(st.binary(min_size=16, max_size=16), max_size=5))
def test_pack_and_unpack_are_inverse(hashes: list[bytes]) -> None:
    assert unpack(pack(hashes)) == hashes


@pytest.mark.parametrize("length", [1, 15, 17, 31])
def test_unpack_refuses_a_broken_length(length: int) -> None:
    with pytest.raises(ValueError, match="whole number"):
        unpack(bytes(length))


def test_pack_refuses_what_is_not_a_hash() -> None:
    with pytest.raises(ValueError, match="16 bytes"):
        pack([bytes(16), bytes(15)])
