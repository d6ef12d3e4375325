"""A KV block and its header, as plain values."""

from __future__ import annotations

from dataclasses import dataclass

from libs.errors import InvalidArgument
from libs.hashing import HASH_BYTES, checksum

TOKEN_BYTES = 4


@dataclass(frozen=True, slots=True)
class Header:
    """What the writer of a block says about it; see BlockHeader in the contract for each field."""

    layout: str
    tokens: int
    payload_bytes: int
    checksum: int
    token_ids: bytes
    parent_key: bytes

    def check(self) -> None:
        """InvalidArgument names the field, in the words of PutRequest, that no writer may send."""
        if not self.layout:
            raise _malformed("is empty", "block.header.layout")
        if self.tokens < 1:
            raise _malformed("is 0", "block.header.tokens")
        if self.payload_bytes < 1:
            raise _malformed("is 0", "block.header.payload_bytes")
        if len(self.token_ids) != TOKEN_BYTES * self.tokens:
            raise _malformed(
                f"has {len(self.token_ids)} bytes for {self.tokens} tokens of {TOKEN_BYTES} bytes",
                "block.header.token_ids",
            )
        if len(self.parent_key) not in (0, HASH_BYTES):
            raise _malformed(f"is not {HASH_BYTES} bytes", "block.header.parent_key")


@dataclass(frozen=True, slots=True)
class Block:
    """`key` names `payload` for ever."""

    key: bytes
    header: Header
    payload: bytes

    def check(self) -> None:
        """InvalidArgument for what no writer may send; a damaged payload is for `is_whole`."""
        if len(self.key) != HASH_BYTES:
            raise _malformed(f"is {len(self.key)} bytes, not {HASH_BYTES}", "block.key")
        self.header.check()

    def is_whole(self) -> bool:
        """True when the payload is the one that the header was written for."""
        return (
            len(self.payload) == self.header.payload_bytes
            and checksum(self.payload) == self.header.checksum
        )


def split_keys(packed: bytes, field: str, *, limit: int) -> list[bytes]:
    """The 16-byte keys side by side in `packed`, at most `limit`; InvalidArgument names `field`."""
    if len(packed) % HASH_BYTES:
        raise InvalidArgument(
            f"{field} has {len(packed)} bytes, which is no whole number of {HASH_BYTES}-byte keys.",
            "MALFORMED_KEYS",
            field,
        )
    if len(packed) > limit * HASH_BYTES:
        raise InvalidArgument(f"{field} has more than {limit} keys.", "TOO_MANY_KEYS", field)
    return [packed[at : at + HASH_BYTES] for at in range(0, len(packed), HASH_BYTES)]


def _malformed(what: str, field: str) -> InvalidArgument:
    return InvalidArgument(f"{field} {what}.", "MALFORMED_BLOCK", field)
