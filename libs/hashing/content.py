"""The content hash chain: what traces are joined by, the same across weight versions.

    h_0 = H("impala.content.v1", salt,    tokens of block 0)
    h_i = H("impala.content.v1", h_(i-1), tokens of block i)

Tokens enter as little-endian u32; only full blocks have a hash. The account's salt is the root of
its chain, so two tenants never share a name.
"""

import sys
from array import array
from collections.abc import Iterable, Sequence

from libs.hashing.domain import HASH_BYTES, Domain

BLOCK_TOKENS = 32
"""Tokens per block, cluster-wide."""

_BLOCK_BYTES = BLOCK_TOKENS * 4
_SALT = Domain("impala.salt.v1")
_CONTENT = Domain("impala.content.v1")


def account_salt(account_id: str) -> bytes:
    """The root of an account's chains: 16 bytes, a pure function of its id."""
    return _SALT.digest(account_id.encode("utf-8"))


class ContentChain:
    """One growing token stream's hashes; keeps the tokens of the unfinished block.

    A failed `extend` (a token outside u32) leaves the chain as it was.
    """

    def __init__(self, salt: bytes) -> None:
        if len(salt) != HASH_BYTES:
            raise ValueError(f"salt must be {HASH_BYTES} bytes, not {len(salt)}")
        self._last = salt
        self._tail = b""

    def extend(self, tokens: Sequence[int]) -> list[bytes]:
        """Add tokens; the hashes of the blocks they complete, in order (often none)."""
        data = self._tail + _pack_tokens(tokens)
        full = len(data) - len(data) % _BLOCK_BYTES
        view = memoryview(data)
        completed = []
        for at in range(0, full, _BLOCK_BYTES):
            self._last = _CONTENT.digest(self._last, view[at : at + _BLOCK_BYTES])
            completed.append(self._last)
        self._tail = data[full:]
        return completed


def content_hashes(salt: bytes, tokens: Sequence[int]) -> list[bytes]:
    """The content hashes of the full blocks of `tokens`; a tail under 32 tokens has none."""
    return ContentChain(salt).extend(tokens)


def pack(hashes: Iterable[bytes]) -> bytes:
    """Hashes (or KV keys) side by side: how they travel in protos."""
    packed = list(hashes)
    for item in packed:
        if len(item) != HASH_BYTES:
            raise ValueError(f"a hash is {HASH_BYTES} bytes, not {len(item)}")
    return b"".join(packed)


def unpack(packed: bytes) -> list[bytes]:
    """The inverse of `pack`; ValueError on a length that is not a multiple of 16."""
    if len(packed) % HASH_BYTES:
        raise ValueError(f"{len(packed)} bytes is not a whole number of {HASH_BYTES}-byte hashes")
    return [packed[at : at + HASH_BYTES] for at in range(0, len(packed), HASH_BYTES)]


def _pack_tokens(tokens: Sequence[int]) -> bytes:
    try:
        packed = array("I", tokens)
    except OverflowError as error:
        raise ValueError("token ids must lie in [0, 2**32)") from error
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()
