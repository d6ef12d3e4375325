"""KV keys: what the tiers of the KV cache store blocks under."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from libs.hashing.domain import HASH_BYTES, Domain, length_prefixed

_NAMESPACE = Domain("impala.namespace.v1")
_KEY = Domain("impala.kvkey.v1")


@dataclass(frozen=True)
class KvNamespace:
    """Everything that a block's KV bytes depend on besides its tokens."""

    model_digest: bytes
    """Digest of the model's architecture and configuration."""
    version_digest: bytes
    """Digest of the weight version: a new version never hits an old one's blocks."""
    adapter: str
    """Adapter name and version; empty for the base model."""
    numerics: str
    """Numerics signature: weight precision, activation quantization, KV dtype, rope."""
    layout: str
    """Order and shape of the bytes within a block."""

    @cached_property
    def digest(self) -> bytes:
        """16 bytes; fields are length-prefixed, so text cannot move between them unnoticed."""
        texts = (self.adapter, self.numerics, self.layout)
        fields = (self.model_digest, self.version_digest, *(t.encode("utf-8") for t in texts))
        return _NAMESPACE.digest(*(length_prefixed(field) for field in fields))


def kv_key(namespace_digest: bytes, content_hash: bytes) -> bytes:
    """The 16-byte KV key of one block; ValueError unless both inputs are 16 bytes."""
    if len(namespace_digest) != HASH_BYTES or len(content_hash) != HASH_BYTES:
        raise ValueError(f"namespace digest and content hash are {HASH_BYTES} bytes each")
    return _KEY.digest(namespace_digest, content_hash)


def kv_keys(namespace_digest: bytes, content_hashes: Iterable[bytes]) -> list[bytes]:
    """The KV keys of a chain of blocks, in order."""
    return [kv_key(namespace_digest, content_hash) for content_hash in content_hashes]
