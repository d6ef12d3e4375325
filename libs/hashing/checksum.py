"""The checksum that guards KV bytes in every tier: against damage, not against an adversary."""

import xxhash


def checksum(payload: bytes | memoryview) -> int:
    """XXH3-64 of the payload, as an unsigned 64-bit integer."""
    return xxhash.xxh3_64_intdigest(payload)
