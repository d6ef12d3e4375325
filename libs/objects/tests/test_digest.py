"""What is noted of an object's bytes tells any other bytes apart."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs.objects.digest import Digest, digest_of, fits


def test_the_digest_is_the_one_that_records_hold() -> None:
    """Pinned: another one would make every object of a running cluster look damaged."""
    assert digest_of(b"") == "99aa06d3014798d86001c324468d497f"
    assert digest_of(b'{"line":1}\n') == "c8e277f803cb43d6ada1ada835017869"


@given(st.lists(st.binary(max_size=50)))
def test_it_does_not_matter_in_which_pieces_the_bytes_come(pieces: list[bytes]) -> None:
    digest, whole = Digest(), b"".join(pieces)
    for piece in pieces:
        digest.update(piece)
    assert digest.hex() == digest_of(whole)
    assert digest.fits(len(whole), digest_of(whole)) and fits(whole, len(whole), digest_of(whole))


@pytest.mark.parametrize("changed", [b"abd", b"ab", b"abcd", b"Abc", b""])
def test_other_bytes_do_not_fit(changed: bytes) -> None:
    digest = Digest()
    digest.update(changed)
    assert not digest.fits(3, digest_of(b"abc"))
    assert not fits(changed, 3, digest_of(b"abc"))


def test_of_a_record_without_a_digest_only_the_size_is_known() -> None:
    assert fits(b"abc", 3, "")
    assert not fits(b"ab", 3, "")
