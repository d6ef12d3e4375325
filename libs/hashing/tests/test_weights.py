"""What the root digest of a weight version covers."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from libs.hashing import weights_root

CONFIG = b"c" * 32
TENSORS = {"a": b"1" * 32, "b": b"2" * 32}


def test_the_order_of_the_tensors_does_not_count() -> None:
    backwards = dict(reversed(TENSORS.items()))
    assert list(backwards) != list(TENSORS)
    assert weights_root(CONFIG, backwards) == weights_root(CONFIG, TENSORS)


def test_config_names_and_contents_count() -> None:
    roots = {
        weights_root(CONFIG, TENSORS),
        weights_root(b"d" * 32, TENSORS),
        weights_root(CONFIG, {"a": b"1" * 32}),
        weights_root(CONFIG, {"a": b"1" * 32, "c": b"2" * 32}),
        weights_root(CONFIG, {"a": b"2" * 32, "b": b"1" * 32}),
    }
    assert len(roots) == 5


@pytest.mark.parametrize(
    ("config", "tensors"),
    [
        (b"short", TENSORS),
        (CONFIG, {"a": b"short"}),
        (CONFIG, {"": b"1" * 32}),
        (CONFIG, {"a\0": b"1" * 32}),
    ],
)
def test_what_could_run_into_its_neighbour_is_refused(
    config: bytes, tensors: Mapping[str, bytes]
) -> None:
    with pytest.raises(ValueError, match="not"):
        weights_root(config, tensors)
