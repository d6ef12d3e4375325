"""What a record notes of an object's bytes, so that damage is seen when they are read.

XXH3-128: against damage, not against an adversary, who could as well change the record.
"""

from __future__ import annotations

import xxhash


class Digest:
    """Of bytes that come one after the other; memory does not grow with them."""

    def __init__(self) -> None:
        self._hash = xxhash.xxh3_128()
        self.size = 0
        """Bytes so far."""

    def update(self, data: bytes | bytearray | memoryview) -> None:
        self._hash.update(data)
        self.size += len(data)

    def hex(self) -> str:
        """32 hexadecimal digits."""
        return self._hash.hexdigest()

    def fits(self, size: int, digest: str) -> bool:
        """Whether these are the bytes of which that was noted; an empty digest is one of a record
        from before digests were noted, and then the size alone must be right."""
        return self.size == size and digest in ("", self.hex())


def digest_of(data: bytes | memoryview) -> str:
    """Of bytes that are there as a whole."""
    return xxhash.xxh3_128_hexdigest(data)


def fits(data: bytes | memoryview, size: int, digest: str) -> bool:
    """As `Digest.fits`."""
    return len(data) == size and digest in ("", digest_of(data))
