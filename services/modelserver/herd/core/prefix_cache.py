"""KV key -> block, with the tokens to prove it.

A 16-byte key is trusted to find a block, not to vouch for it: each entry keeps its token ids
and its parent's key, and a hit that does not match both is a miss, counted.
"""

from collections.abc import Sequence as Seq
from dataclasses import dataclass

from services.modelserver.herd.core.errors import IntegrityError
from services.modelserver.herd.core.plan import BlockId, EvictedBlock
from services.modelserver.herd.core.sequence import Sequence


@dataclass(frozen=True, slots=True)
class Entry:
    """What a registered block holds."""

    key: bytes
    content_hash: bytes
    tokens: tuple[int, ...]
    parent: bytes | None


class PrefixCache:
    """Owns which block holds which content. An entry's parent is always an entry too."""

    def __init__(self) -> None:
        self._block_of: dict[bytes, BlockId] = {}
        self._entry_of: dict[BlockId, Entry] = {}
        self.mismatches = 0

    def __contains__(self, block: BlockId) -> bool:
        return block in self._entry_of

    def has_key(self, key: bytes) -> bool:
        """Whether some block is named by the key, its tokens not verified."""
        return key in self._block_of

    def match(self, seq: Sequence) -> list[BlockId]:
        """Blocks of the longest cached prefix of the sequence, leaving its last token out: the
        last known token is always computed, so that there are logits to sample from."""
        blocks: list[BlockId] = []
        for index in range(seq.max_hit_blocks):
            block = self.find(seq, index)
            if block is None:
                break
            blocks.append(block)
        return blocks

    def find(self, seq: Sequence, index: int) -> BlockId | None:
        """The block that holds the sequence's block `index`, verified."""
        block = self._block_of.get(seq.keys[index])
        if block is None:
            return None
        entry = self._entry_of[block]
        if entry.tokens != seq.block_tokens[index] or entry.parent != parent_key(seq, index):
            self.mismatches += 1
            return None
        return block

    def register(self, seq: Sequence, index: int, block: BlockId) -> BlockId | None:
        """Record that `block` holds the sequence's block `index`.

        Returns the block that the key now names, which is another one if the same content was
        there already; None if the key is taken by other content (then nothing is recorded).
        """
        key = seq.keys[index]
        if key in self._block_of:
            return self.find(seq, index)
        self._block_of[key] = block
        self._entry_of[block] = Entry(
            key, seq.content_hashes[index], seq.block_tokens[index], parent_key(seq, index)
        )
        return block

    def forget(self, block: BlockId) -> EvictedBlock:
        """Drop the block's entry; what it held."""
        entry = self._entry_of.pop(block)
        del self._block_of[entry.key]
        return EvictedBlock(block, entry.key, entry.content_hash, entry.tokens, entry.parent)

    def check_integrity(self, eviction_order: Seq[BlockId]) -> None:
        """Keys and blocks are one to one, parents exist, unheld blocks are all registered and a
        child goes before its parent."""
        if {self._entry_of[b].key: b for b in self._entry_of} != self._block_of:
            raise IntegrityError("keys and blocks disagree")
        rank = {block: at for at, block in enumerate(eviction_order)}
        for block in eviction_order:
            if block not in self._entry_of:
                raise IntegrityError(f"unheld block {block} has content that nothing names")
        for block, entry in self._entry_of.items():
            if entry.parent is None:
                continue
            parent = self._block_of.get(entry.parent)
            if parent is None:
                raise IntegrityError(f"block {block} lost the block before it")
            # A held child with an unheld parent, or a child evicted later, could be orphaned.
            if parent in rank and rank.get(block, len(rank)) > rank[parent]:
                raise IntegrityError(f"block {parent} would go before {block}, which needs it")


def parent_key(seq: Sequence, index: int) -> bytes | None:
    """KV key of the block before `index`; None for the first."""
    return seq.keys[index - 1] if index else None
