"""The root digest of a weight version: what Leap's manifests and model servers name weights by."""

import hashlib
from collections.abc import Mapping

WEIGHT_DIGEST_BYTES = 32


def weights_root(config_digest: bytes, tensor_digests: Mapping[str, bytes]) -> bytes:
    """BLAKE2b-256 over the config digest, then name, zero byte and digest of each tensor, sorted
    by name (by code point).

    ValueError unless every digest is 32 bytes and no name is empty or holds a zero byte: that is
    what keeps a name from running into the digest behind it.
    """
    _check(config_digest)
    state = hashlib.blake2b(config_digest, digest_size=WEIGHT_DIGEST_BYTES)
    for name in sorted(tensor_digests):
        digest = tensor_digests[name]
        _check(digest)
        if not name or "\0" in name:
            raise ValueError(f"not usable as a tensor's name (empty, or a zero byte): {name!r}")
        state.update(name.encode("utf-8") + b"\0" + digest)
    return state.digest()


def _check(digest: bytes) -> None:
    if len(digest) != WEIGHT_DIGEST_BYTES:
        raise ValueError(f"a digest is {WEIGHT_DIGEST_BYTES} bytes, not {len(digest)}")
