"""A checksum of KV bytes in every tier, and of other bytes: against damage, not an adversary."""

import xxhash


def checksum(payload: bytes | memoryview) -> int:
    """XXH3-64 of the payload, as an unsigned 64-bit integer."""
    return xxhash.xxh3_64_intdigest(payload)
