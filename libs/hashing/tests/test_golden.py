"""The pinned values. If one changes, every stored block and every joined trace is orphaned."""

from libs.hashing import (
    BLOCK_TOKENS,
    HASH_BYTES,
    KvNamespace,
    account_salt,
    checksum,
    content_hashes,
    kv_keys,
    weights_root,
)

NAMESPACE = KvNamespace(b"m" * 16, b"v" * 16, "", "f32", "L")


def test_sizes() -> None:
    assert (BLOCK_TOKENS, HASH_BYTES) == (32, 16)


def test_salt() -> None:
    assert account_salt("acct-1").hex() == "f177569ed6e69c10e0a52fb80ab98ac8"


def test_content_chain() -> None:
    hashes = content_hashes(account_salt("acct-1"), range(70))
    assert [h.hex() for h in hashes] == [
        "1d1d9cc57dda33641fc7d5070f44c678",
        "0a7a817a06167d6bdc664ff960e4e0d8",
    ]


def test_namespace_and_keys() -> None:
    assert NAMESPACE.digest.hex() == "88adcb79d2fbd36a8e48462fe2e9f00a"
    keys = kv_keys(NAMESPACE.digest, content_hashes(account_salt("acct-1"), range(70)))
    assert [k.hex() for k in keys] == [
        "0bbe3f1266afb035edf68338401e2815",
        "e5105514315f9017437423df6274e4e2",
    ]


def test_weights_root() -> None:
    tensors = {"layer.00001": b"1" * 32, "layer.00000": b"0" * 32}
    assert (
        weights_root(b"c" * 32, tensors).hex()
        == "c36097126dd67a77a748ec9f96ee929ef3790366088a768d278fbb4287ea9e9e"
    )
    assert (
        weights_root(b"c" * 32, {}).hex()
        == "f0e9c07993de2011907f2a0f1629527b72d4c5261388a68237e46a7b6ab82dc6"
    )


def test_checksum() -> None:
    assert checksum(b"impala") == 0x67C2762C0D8B9805
    assert checksum(memoryview(b"impala")) == checksum(b"impala")
    assert checksum(b"") == 0x2D06800538D394C2
