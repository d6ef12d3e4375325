"""A weight version's manifest, and the digest that is its identity."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

from libs.errors import InvalidArgument

DIGEST_BYTES = 32
MAX_MODEL_CHARS = 256
MAX_TENSORS = 1_000_000


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor in the source format; dtype and shape may be unknown (empty)."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    digest: bytes


@dataclass(frozen=True, slots=True)
class Manifest:
    """See Manifest in the contract for each field. `tensors` is empty where they were left out."""

    model: str
    digest: bytes
    config_digest: bytes
    layout_signature: str = ""
    tensors: tuple[Tensor, ...] = ()
    parent_seq: int = 0
    delta: bool = False
    source: str = ""
    label: str = ""
    bytes: int = 0

    def check(self) -> None:
        """InvalidArgument names the field, in the words of RegisterVersionRequest.

        With tensors given, the digest must be theirs: a publisher cannot name other weights.
        """
        if not 1 <= len(self.model) <= MAX_MODEL_CHARS or not self.model.isprintable():
            raise _bad(f"must be 1 to {MAX_MODEL_CHARS} printable characters", "manifest.model")
        _check_digest(self.digest, "manifest.digest")
        _check_digest(self.config_digest, "manifest.config_digest")
        if not self.tensors:
            return
        if len(self.tensors) > MAX_TENSORS:
            raise _bad(f"has more than {MAX_TENSORS} entries", "manifest.tensors")
        self._check_tensors()
        if root_digest(self.config_digest, self.tensors) != self.digest:
            raise _bad("is not the root over tensors and config_digest", "manifest.digest")

    def _check_tensors(self) -> None:
        previous = ""
        for index, tensor in enumerate(self.tensors):
            field = f"manifest.tensors[{index}]"
            if not tensor.name or tensor.name <= previous:
                raise _bad("is empty, repeated or out of order", f"{field}.name")
            previous = tensor.name
            _check_digest(tensor.digest, f"{field}.digest")


def root_digest(config_digest: bytes, tensors: Iterable[Tensor]) -> bytes:
    """blake2b-256 over the config's digest, then name, a zero byte and digest of each tensor, by
    name. The model server computes the same over the weights that it loaded."""
    state = hashlib.blake2b(config_digest, digest_size=DIGEST_BYTES)
    for tensor in sorted(tensors, key=lambda each: each.name):
        state.update(tensor.name.encode() + b"\0" + tensor.digest)
    return state.digest()


def _check_digest(digest: bytes, field: str) -> None:
    if len(digest) != DIGEST_BYTES:
        raise _bad(f"is {len(digest)} bytes, not {DIGEST_BYTES}", field)


def _bad(what: str, field: str) -> InvalidArgument:
    return InvalidArgument(f"{field} {what}.", "MALFORMED_MANIFEST", field)
