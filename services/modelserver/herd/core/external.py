"""Loads from the external tier, from the lookup to the last byte.

A load holds the sequence's local hit (so that what it loads has a prefix to stand on) and the
blocks being filled. Its sequence waits and holds nothing else. When it ends, everything goes to
the prefix cache, where the sequence finds it at its admission like any other hit: a load never
runs the sequence, so it cannot deadlock with those that do.
"""

from collections.abc import Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field

from services.modelserver.herd.core.errors import ProtocolError
from services.modelserver.herd.core.kv_blocks import KvBlocks
from services.modelserver.herd.core.plan import BlockId, EvictedBlock, Lookup, Reservation, SeqId
from services.modelserver.herd.core.sequence import Sequence


@dataclass(slots=True)
class _Load:
    seq: Sequence
    held: list[BlockId]
    first_block: int
    num_keys: int
    reserved: bool = False
    blocks: list[BlockId] = field(default_factory=list)


class ExternalLoads:
    """Owns the blocks of loads in progress; at most one load a sequence."""

    def __init__(self, kv: KvBlocks) -> None:
        self._kv = kv
        self._loads: dict[SeqId, _Load] = {}
        self.mismatches = 0

    def __len__(self) -> int:
        return len(self._loads)

    def __contains__(self, seq_id: SeqId) -> bool:
        return seq_id in self._loads

    def start(self, seq: Sequence, hit: Seq[BlockId]) -> Lookup:
        """Hold the local hit and ask for what follows it."""
        keys = tuple(seq.keys[len(hit) : seq.max_hit_blocks])
        self._kv.hold(hit)
        self._loads[seq.seq_id] = _Load(seq, list(hit), len(hit), len(keys))
        return Lookup(seq.seq_id, keys, len(hit))

    def reserve(self, seq_id: SeqId, num_blocks: int) -> Reservation:
        """Take up to `num_blocks` blocks to fill."""
        load = self._get(seq_id, reserved=False)
        load.reserved = True
        evicted: list[EvictedBlock] = []
        for _ in range(min(num_blocks, load.num_keys)):
            block = self._kv.take(evicted)
            if block is None:
                break
            load.blocks.append(block)
        return Reservation(tuple(load.blocks), tuple(evicted))

    def fill(self, seq_id: SeqId, tokens: Seq[Seq[int]]) -> int:
        """Name the leading blocks that were loaded, up to the first whose stored tokens are not
        the sequence's; how many."""
        load = self._get(seq_id, reserved=True)
        if len(tokens) > len(load.blocks):
            raise ProtocolError(f"{seq_id}: more blocks loaded than reserved")
        for at, stored in enumerate(tokens):
            index = load.first_block + at
            if tuple(stored) != load.seq.block_tokens[index]:
                self.mismatches += 1
                return at
            named = self._kv.name(load.seq, index, load.blocks[at])
            if named is None:
                return at
            load.blocks[at] = named
        return len(tokens)

    def end(self, seq_id: SeqId) -> Sequence:
        """Let go of everything; the sequence that waited."""
        load = self._loads.pop(seq_id, None)
        if load is None:
            raise ProtocolError(f"{seq_id} has no lookup or load in progress")
        self._kv.release([*load.held, *load.blocks])
        return load.seq

    def holds(self) -> Iterator[BlockId]:
        """Every hold of every load."""
        for load in self._loads.values():
            yield from load.held
            yield from load.blocks

    def sequences(self) -> Iterator[Sequence]:
        for load in self._loads.values():
            yield load.seq

    def _get(self, seq_id: SeqId, *, reserved: bool) -> _Load:
        load = self._loads.get(seq_id)
        if load is None or load.reserved is not reserved:
            asked = "load" if reserved else "lookup"
            raise ProtocolError(f"{seq_id} has no {asked} in progress")
        return load
