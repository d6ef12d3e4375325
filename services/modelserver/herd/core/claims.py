"""Which sequence is computing or loading which block right now.

When many sequences that share a prefix arrive together, one claims the prefix's blocks and the
others are held back until these land in the cache: a fan-out computes its context once.
"""

from collections.abc import Iterable

from services.modelserver.herd.core.errors import IntegrityError
from services.modelserver.herd.core.plan import SeqId
from services.modelserver.herd.core.sequence import Sequence


class Claims:
    """KV key -> the one sequence that will produce it. First come, first claimed."""

    def __init__(self) -> None:
        self._owner_of: dict[bytes, SeqId] = {}
        self._keys_of: dict[SeqId, set[bytes]] = {}

    def claim(self, seq: Sequence, first_block: int) -> None:
        """Claim the sequence's full blocks from `first_block` on, as far as they are unclaimed."""
        mine = self._keys_of.setdefault(seq.seq_id, set())
        for key in seq.keys[first_block:]:
            if self._owner_of.setdefault(key, seq.seq_id) == seq.seq_id:
                mine.add(key)

    def landed(self, seq: Sequence, key: bytes) -> None:
        """The block is in the cache (or will never be): nobody need wait for it."""
        mine = self._keys_of.get(seq.seq_id)
        if mine is not None and key in mine:
            mine.remove(key)
            del self._owner_of[key]

    def drop(self, seq: Sequence) -> None:
        """The sequence produces nothing more: finished, preempted, or its load ended."""
        for key in self._keys_of.pop(seq.seq_id, ()):
            del self._owner_of[key]

    def is_claimed(self, key: bytes) -> bool:
        return key in self._owner_of

    def check_integrity(self, producers: Iterable[SeqId]) -> None:
        """Only running or loading sequences may own claims: else a waiter would wait forever."""
        if set(self._keys_of) - set(producers):
            raise IntegrityError("a sequence that produces nothing holds claims")
        pairs = {key: owner for owner, keys in self._keys_of.items() for key in keys}
        if pairs != self._owner_of:
            raise IntegrityError("claims and owners disagree")
