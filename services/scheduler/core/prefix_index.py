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
        known = self._holders
        for block in hashes:
            before = known.get(block)
            if before is None:
                known[block] = (incarnation,)
                continue
            known.move_to_end(block)
            if before[0] != incarnation:
                others = tuple(holder for holder in before if holder != incarnation)
                known[block] = (incarnation, *others)[:_HOLDERS]
        while len(known) > self._capacity:
            known.popitem(last=False)

    def matches(self, hashes: Sequence[bytes]) -> dict[str, int]:
        """For each incarnation that has a prefix of the chain: its blocks from the start."""
        found: dict[str, int] = {}
        alive: tuple[str, ...] = self._holders.get(hashes[0], ()) if hashes else ()
        last = alive
        blocks = 0
        for block in hashes:
            holders = self._holders.get(block, ())
            if holders != last:  # Neighbours mostly have the same.
                left = [holder for holder in alive if holder not in holders]
                found |= dict.fromkeys(left, blocks)
                alive = tuple(holder for holder in alive if holder in holders)
                last = holders
            if not alive:
                break
            blocks += 1
        return found | dict.fromkeys(alive, blocks)
