"""The KV pool with its contents: block states and the prefix cache kept in step."""

from collections.abc import Iterable
from collections.abc import Sequence as Seq

from libs.hashing import BLOCK_TOKENS
from services.modelserver.herd.core.block_pool import BlockPool
from services.modelserver.herd.core.errors import IntegrityError
from services.modelserver.herd.core.plan import BlockId, EvictedBlock
from services.modelserver.herd.core.prefix_cache import PrefixCache
from services.modelserver.herd.core.sequence import Sequence, blocks_for


class KvBlocks:
    """Gives blocks to sequences, names them when they are full, takes them back."""

    def __init__(self, num_blocks: int) -> None:
        self.pool = BlockPool(num_blocks)
        self.cache = PrefixCache()
        self.evictions = 0

    def take(self, evicted: list[EvictedBlock]) -> BlockId | None:
        """Hold a block for writing; content lost by that is appended to `evicted`."""
        taken = self.pool.take()
        if taken is None:
            return None
        block, had_content = taken
        if had_content:
            evicted.append(self.cache.forget(block))
            self.evictions += 1
        return block

    def grow(self, seq: Sequence, num_tokens: int, evicted: list[EvictedBlock]) -> None:
        """Extend the table towards `num_tokens` positions, as far as there are blocks."""
        while seq.capacity() < num_tokens:
            block = self.take(evicted)
            if block is None:
                return
            seq.add_block(block)

    def spare_after(self, hit: Seq[BlockId], num_tokens: int) -> int:
        """Blocks still available once a sequence has its hit and room for `num_tokens` positions
        in all; negative if there is no room."""
        unheld = sum(self.pool.is_cached(block) for block in hit)
        return self.pool.num_available - unheld - (blocks_for(num_tokens) - len(hit))

    def hold(self, blocks: Iterable[BlockId]) -> None:
        """Hold blocks found in the cache."""
        for block in blocks:
            self.pool.retain(block)

    def release(self, blocks: Seq[BlockId]) -> None:
        """Let go of a table or a load, given prefix first; named content stays in the cache."""
        for block in reversed(blocks):
            self.pool.release(block, keep=block in self.cache)

    def name(self, seq: Sequence, index: int, block: BlockId) -> BlockId | None:
        """Put the held, full `block` in the cache as the sequence's block `index`.

        If that content is there already, the hold moves to the block that has it, so that whoever
        holds a block also holds the named ones before it. Returns the block now held; None if the
        key belongs to other content: the block stays private, and so must all after it.
        """
        named = self.cache.register(seq, index, block)
        if named is not None and named != block:
            self.pool.retain(named)
            self.pool.release(block, keep=False)
        return named

    def name_computed(self, seq: Sequence) -> list[bytes]:
        """Name the sequence's blocks that became full; the keys that landed."""
        landed = []
        for index in range(seq.num_registered, seq.num_computed // BLOCK_TOKENS):
            named = self.name(seq, index, seq.block_table[index])
            if named is None:
                break
            if named != seq.block_table[index]:
                seq.replace_block(index, named)
            seq.num_registered = index + 1
            landed.append(seq.keys[index])
        return landed

    def check_integrity(self, held: Iterable[BlockId]) -> None:
        """`held`: every hold by tables and loads."""
        self.pool.check_integrity(held)
        self.cache.check_integrity(self.pool.eviction_order())

    def check_table(self, seq: Sequence) -> None:
        """The sequence's table covers what it computed and holds what the cache says it does."""
        if seq.num_computed > min(seq.capacity(), len(seq.tokens)):
            raise IntegrityError(f"{seq.seq_id} computed more than it holds")
        if seq.num_registered > seq.num_computed // BLOCK_TOKENS:
            raise IntegrityError(f"{seq.seq_id} named a block before it was full")
        for index, block in enumerate(seq.block_table):
            if index < seq.num_registered:
                if self.cache.find(seq, index) != block:
                    raise IntegrityError(f"{seq.seq_id}: block {block} is not what its key names")
            elif block in self.cache:
                raise IntegrityError(f"{seq.seq_id} may write to block {block}, which is shared")
