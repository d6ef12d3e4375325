"""Blocks in memory under a byte limit: what to keep is decided here, by recency and soft leases.

Eviction order: first blocks whose lease has run out (the return they were kept for did not come),
then those without a lease, least recently used first, then leased ones, least recently used first:
a lease is a preference, never a pin, so a put always finds room.

One writer: the caller. Time is an argument, in seconds of one monotonic clock.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from services.kvstore.core.block import Block

# What a held block costs beyond its payload and token ids: key, header, dictionary entries.
OVERHEAD_BYTES = 512
# Stale lease ends kept before they are swept, besides one for each leased block.
_STALE_ENDS = 1024


class PutOutcome(Enum):
    STORED = "stored"
    PRESENT = "present"
    REFUSED = "refused"  # not whole, or larger than the whole store


@dataclass(slots=True)
class Counters:
    """Blocks, since start."""

    hits: int = 0
    misses: int = 0
    puts: int = 0
    corrupt: int = 0
    refused: int = 0
    evicted: int = 0


@dataclass(slots=True)
class _Held:
    block: Block
    cost: int
    leased_until: float = 0.0  # 0 = no lease


class BlockStore:
    """A key names one payload for ever, so a block is only ever added, used and dropped."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        self.counters = Counters()
        # Each held key is in exactly one of the two, both in order of use, oldest first.
        self._plain: OrderedDict[bytes, _Held] = OrderedDict()
        self._leased: OrderedDict[bytes, _Held] = OrderedDict()
        # (end, key) of every lease ever given; entries whose block has another end are stale.
        self._ends: list[tuple[float, bytes]] = []

    def __len__(self) -> int:
        return len(self._plain) + len(self._leased)

    def put(self, block: Block, now: float, lease_s: float = 0.0) -> PutOutcome:
        """Hold `block` as the most recently used one, evicting others for it if need be."""
        self._end_leases(now)
        if self._find(block.key) is not None:
            self._use(block.key, now, lease_s)
            return PutOutcome.PRESENT
        cost = len(block.payload) + len(block.header.token_ids) + OVERHEAD_BYTES
        if cost > self.limit_bytes or not block.is_whole():
            self.counters.refused += 1
            return PutOutcome.REFUSED
        self._make_room(cost)
        self._plain[block.key] = _Held(block, cost)
        self.used_bytes += cost
        self.counters.puts += 1
        self._use(block.key, now, lease_s)
        return PutOutcome.STORED

    def get(self, key: bytes, layout: str, now: float) -> Block | None:
        """The block, now the most recently used one; None counts as a miss.

        layout: only a block of it is answered; empty = any. A block that no longer matches its
        checksum is dropped, counted as corrupt, and a miss.
        """
        block = self._matching(key, layout)
        if block is not None and not block.is_whole():
            self._drop(key)
            self.counters.corrupt += 1
            block = None
        if block is None:
            self.counters.misses += 1
            return None
        self.counters.hits += 1
        self._use(key, now, 0.0)
        return block

    def held_prefix(self, keys: Sequence[bytes], layout: str) -> int:
        """How many of `keys` are held without a gap from the first on. Not a use."""
        for count, key in enumerate(keys):
            if self._matching(key, layout) is None:
                return count
        return len(keys)

    def touch(self, keys: Sequence[bytes], now: float, lease_s: float = 0.0) -> int:
        """Make the held ones of `keys` most recently used, the first of a chain last, so that a
        chain is evicted from its end; with `lease_s` > 0 renew their lease. How many are held."""
        self._end_leases(now)
        held = [key for key in keys if self._find(key) is not None]
        for key in reversed(held):
            self._use(key, now, lease_s)
        return len(held)

    def delete(self, keys: Sequence[bytes]) -> int:
        """Drop the held ones of `keys`; how many there were."""
        held = [key for key in dict.fromkeys(keys) if self._find(key) is not None]
        for key in held:
            self._drop(key)
        return len(held)

    def check_integrity(self) -> None:
        """AssertionError when the bookkeeping contradicts itself. Costs a walk over all blocks."""
        both = [*self._plain.items(), *self._leased.items()]
        assert len({key for key, _ in both}) == len(both), "a key is in both queues"
        assert self.used_bytes == sum(held.cost for _, held in both), "used_bytes is wrong"
        assert self.used_bytes <= self.limit_bytes, "over the limit"
        assert all(key == held.block.key for key, held in both), "a block under another key"
        assert all(held.leased_until == 0 for held in self._plain.values()), "a lease in plain"
        ends = set(self._ends)
        assert all((held.leased_until, key) in ends for key, held in self._leased.items()), (
            "a lease that will never end"
        )

    def _find(self, key: bytes) -> _Held | None:
        return self._plain.get(key) or self._leased.get(key)

    def _matching(self, key: bytes, layout: str) -> Block | None:
        held = self._find(key)
        if held is None or (layout and held.block.header.layout != layout):
            return None
        return held.block

    def _use(self, key: bytes, now: float, lease_s: float) -> None:
        held = self._find(key)
        assert held is not None
        if lease_s > 0 and now + lease_s > held.leased_until:
            held.leased_until = now + lease_s
            heapq.heappush(self._ends, (held.leased_until, key))
            self._plain.pop(key, None)
            self._leased[key] = held
        queue = self._leased if key in self._leased else self._plain
        queue.move_to_end(key)

    def _make_room(self, cost: int) -> None:
        while self.used_bytes + cost > self.limit_bytes:
            oldest = next(iter(self._plain or self._leased))
            self._drop(oldest)
            self.counters.evicted += 1

    def _end_leases(self, now: float) -> None:
        """Blocks whose lease has run out become the first to go."""
        if len(self._ends) > 2 * len(self._leased) + _STALE_ENDS:
            self._ends = [(held.leased_until, key) for key, held in self._leased.items()]
            heapq.heapify(self._ends)
        while self._ends and self._ends[0][0] <= now:
            end, key = heapq.heappop(self._ends)
            held = self._leased.get(key)
            if held is not None and held.leased_until == end:
                del self._leased[key]
                held.leased_until = 0.0
                self._plain[key] = held
                self._plain.move_to_end(key, last=False)

    def _drop(self, key: bytes) -> None:
        held = self._plain.pop(key, None) or self._leased.pop(key)
        self.used_bytes -= held.cost
