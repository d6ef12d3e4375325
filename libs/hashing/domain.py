"""Domain-separated BLAKE2b: one hash function per purpose, so that no two purposes can collide."""

import hashlib

HASH_BYTES = 16


class Domain:
    """BLAKE2b-128 over `len(tag) || tag || data`; the tag's length makes the tags prefix-free."""

    def __init__(self, tag: str) -> None:
        raw = tag.encode("ascii")
        self._base = hashlib.blake2b(bytes([len(raw)]) + raw, digest_size=HASH_BYTES)

    def digest(self, *parts: bytes | memoryview) -> bytes:
        """Hash the parts as if joined: the caller fixes or prefixes their lengths. 16 bytes."""
        hasher = self._base.copy()
        for part in parts:
            hasher.update(part)
        return hasher.digest()


def length_prefixed(field: bytes) -> bytes:
    """The field behind its length as a little-endian u32."""
    return len(field).to_bytes(4, "little") + field
