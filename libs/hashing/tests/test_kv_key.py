"""KV keys and their namespace."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs.hashing import KvNamespace, account_salt, content_hashes, kv_key, kv_keys

BASE = KvNamespace(b"m" * 16, b"v" * 16, "adapter", "bf16", "layout")
HASHES = content_hashes(account_salt("a"), range(96))
FIELDS = st.tuples(st.binary(max_size=3), st.binary(max_size=3), *[st.text("ab", max_size=3)] * 3)


@given(FIELDS, FIELDS)
def test_namespaces_are_equal_only_if_every_field_is(
    one: tuple[bytes, bytes, str, str, str], two: tuple[bytes, bytes, str, str, str]
) -> None:
    assert (KvNamespace(*one).digest == KvNamespace(*two).digest) == (one == two)


def test_text_that_moves_between_fields_changes_the_namespace() -> None:
    moved = [
        KvNamespace(b"X", b"", "", "", ""),
        KvNamespace(b"", b"X", "", "", ""),
        KvNamespace(b"", b"", "X", "", ""),
        KvNamespace(b"", b"", "", "X", ""),
        KvNamespace(b"", b"", "", "", "X"),
    ]
    assert len({namespace.digest for namespace in moved}) == 5


def test_an_adapter_an_account_and_a_hash_of_the_same_bytes_never_meet() -> None:
    adapter_x = KvNamespace(BASE.model_digest, BASE.version_digest, "X", "bf16", "layout")
    names = [
        adapter_x.digest,
        account_salt("X"),
        kv_key(adapter_x.digest, account_salt("X")),
        kv_key(account_salt("X"), adapter_x.digest),
        content_hashes(account_salt("X"), [0] * 32)[0],
        content_hashes(adapter_x.digest, [0] * 32)[0],
    ]
    assert len(set(names)) == len(names)


def test_each_block_has_one_key_per_namespace() -> None:
    other = KvNamespace(b"m" * 16, b"w" * 16, "adapter", "bf16", "layout")
    keys = [kv_keys(namespace.digest, HASHES) for namespace in (BASE, other)]
    assert len(set(itertools.chain(*keys))) == 6
    assert keys[0] == [kv_key(BASE.digest, h) for h in HASHES]


@pytest.mark.parametrize(("namespace", "content"), [(bytes(15), bytes(16)), (bytes(16), bytes(17))])
def test_inputs_of_another_length_are_refused(namespace: bytes, content: bytes) -> None:
    with pytest.raises(ValueError, match="16 bytes"):
        kv_key(namespace, content)
