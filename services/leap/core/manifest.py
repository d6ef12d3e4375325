"""A weight version's manifest, and the digest that is its identity."""

from __future__ import annotations

from dataclasses import dataclass

from libs.errors import InvalidArgument
from libs.hashing import WEIGHT_DIGEST_BYTES, weights_root

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
        digests = {tensor.name: tensor.digest for tensor in self.tensors}
        if weights_root(self.config_digest, digests) != self.digest:
            raise _bad("is not the root over tensors and config_digest", "manifest.digest")

    def _check_tensors(self) -> None:
        previous = ""
        for index, tensor in enumerate(self.tensors):
            field = f"manifest.tensors[{index}]"
            if not tensor.name.isprintable() or tensor.name <= previous:
                raise _bad("is empty, unprintable, repeated or out of order", f"{field}.name")
            previous = tensor.name
            _check_digest(tensor.digest, f"{field}.digest")


def _check_digest(digest: bytes, field: str) -> None:
    if len(digest) != WEIGHT_DIGEST_BYTES:
        raise _bad(f"is {len(digest)} bytes, not {WEIGHT_DIGEST_BYTES}", field)


def _bad(what: str, field: str) -> InvalidArgument:
    return InvalidArgument(f"{field} {what}.", "MALFORMED_MANIFEST", field)
