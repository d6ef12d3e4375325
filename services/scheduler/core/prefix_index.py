"""Which servers probably hold the KV of which blocks.

Fed by grants (a step will leave its prompt there) and by step reports (it did). Only a guess: the
server decides by its own cache, a wrong guess costs a recompute.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence

_HOLDERS = 4


class PrefixIndex:
    """Content hash -> the incarnations that last had it, at most 4. The least used go first."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._holders: OrderedDict[bytes, tuple[str, ...]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._holders)

    def add(self, hashes: Iterable[bytes], incarnation: str) -> None:
        for block in hashes:
            before = self._holders.pop(block, ())
            if not before or before[0] != incarnation:
                others = tuple(holder for holder in before if holder != incarnation)
                before = (incarnation, *others)[:_HOLDERS]
            self._holders[block] = before
        while len(self._holders) > self._capacity:
            self._holders.popitem(last=False)

    def matches(self, hashes: Sequence[bytes]) -> dict[str, int]:
        """For each incarnation that has a prefix of the chain: its blocks from the start."""
        found: dict[str, int] = {}
        alive: set[str] | None = None
        for count, block in enumerate(hashes, start=1):
            holders = self._holders.get(block, ())
            alive = set(holders) if alive is None else alive.intersection(holders)
            if not alive:
                break
            for incarnation in alive:
                found[incarnation] = count
        return found
