"""Reference-counted pages of the KV pool.

A block is in exactly one state: **free** (no content), **used** (held by block tables or loads,
counted), or **cached** (unheld, content kept). Cached blocks are given out last, least recently
released first. A holder that holds a block also holds the blocks before it, and releases suffix
first; so in the cached order a block always comes before the blocks it needs, and eviction
never leaves a suffix whose prefix is gone.
"""

from collections import OrderedDict
from collections.abc import Iterable

from services.modelserver.herd.core.errors import IntegrityError
from services.modelserver.herd.core.plan import BlockId


class BlockPool:
    """Owns the state of every block; knows nothing of what is in them."""

    def __init__(self, num_blocks: int) -> None:
        if num_blocks < 1:
            raise ValueError("the pool needs at least one block")
        self.num_blocks = num_blocks
        self._holders = [0] * num_blocks
        self._free = list(range(num_blocks - 1, -1, -1))
        self._cached: OrderedDict[BlockId, None] = OrderedDict()

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_cached(self) -> int:
        return len(self._cached)

    @property
    def num_available(self) -> int:
        """Blocks that `take` can give out now."""
        return len(self._free) + len(self._cached)

    @property
    def num_used(self) -> int:
        return self.num_blocks - self.num_available

    def is_cached(self, block: BlockId) -> bool:
        """Whether the block is unheld with content kept."""
        return block in self._cached

    def take(self) -> tuple[BlockId, bool] | None:
        """Hold a block nobody holds, and whether it had content that is now lost; None if all
        are held."""
        if self._free:
            block, had_content = self._free.pop(), False
        elif self._cached:
            (block, _), had_content = self._cached.popitem(last=False), True
        else:
            return None
        self._holders[block] = 1
        return block, had_content

    def retain(self, block: BlockId) -> None:
        """Hold a used or cached block once more."""
        self._cached.pop(block, None)
        self._holders[block] += 1

    def release(self, block: BlockId, *, keep: bool) -> None:
        """Let go once; with the last holder gone it becomes cached (`keep`) or free.

        Release a table's blocks suffix first.
        """
        self._holders[block] -= 1
        if self._holders[block]:
            return
        if keep:
            self._cached[block] = None
        else:
            self._free.append(block)

    def eviction_order(self) -> list[BlockId]:
        """Cached blocks, the next to go first."""
        return list(self._cached)

    def check_integrity(self, held: Iterable[BlockId]) -> None:
        """`held` lists every hold there is, a block as often as it is held."""
        expected = [0] * self.num_blocks
        for block in held:
            expected[block] += 1
        if expected != self._holders:
            raise IntegrityError(f"holders {self._holders} but tables and loads give {expected}")
        unheld = sorted([*self._free, *self._cached])
        if unheld != [block for block, count in enumerate(expected) if not count]:
            raise IntegrityError("a block is lost or in two states")
