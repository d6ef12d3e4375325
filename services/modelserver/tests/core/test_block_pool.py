"""Block states and who may be evicted."""

import pytest

from services.modelserver.herd.core.block_pool import BlockPool
from services.modelserver.herd.core.errors import IntegrityError


def take(pool: BlockPool, count: int) -> list[int]:
    taken = [pool.take() for _ in range(count)]
    assert all(taken)
    return [block for block, _ in filter(None, taken)]


def test_free_blocks_go_before_cached_ones() -> None:
    pool = BlockPool(2)
    (kept,) = take(pool, 1)
    pool.release(kept, keep=True)
    fresh = pool.take()
    assert fresh is not None and fresh[0] != kept and not fresh[1]
    assert pool.take() == (kept, True)
    assert pool.take() is None


def test_the_least_recently_released_goes_first() -> None:
    pool = BlockPool(3)
    blocks = take(pool, 3)
    for block in (blocks[1], blocks[2], blocks[0]):
        pool.release(block, keep=True)
    pool.retain(blocks[1])
    pool.release(blocks[1], keep=True)
    assert pool.eviction_order() == [blocks[2], blocks[0], blocks[1]]


def test_a_block_is_available_only_after_its_last_holder() -> None:
    pool = BlockPool(1)
    (block,) = take(pool, 1)
    pool.retain(block)
    pool.release(block, keep=True)
    assert pool.num_available == 0 and pool.num_used == 1
    pool.release(block, keep=True)
    assert pool.is_cached(block) and pool.num_used == 0


def test_a_block_without_content_goes_back_to_the_free_ones() -> None:
    pool = BlockPool(1)
    (block,) = take(pool, 1)
    pool.release(block, keep=False)
    assert (pool.num_free, pool.num_cached) == (1, 0)


def test_integrity_sees_a_hold_that_nobody_has() -> None:
    pool = BlockPool(2)
    (block,) = take(pool, 1)
    pool.check_integrity([block])
    with pytest.raises(IntegrityError):
        pool.check_integrity([])
    with pytest.raises(IntegrityError):
        pool.check_integrity([block, block])


def test_integrity_sees_a_block_released_once_too_often() -> None:
    pool = BlockPool(2)
    (block,) = take(pool, 1)
    pool.release(block, keep=False)
    pool.release(block, keep=False)
    with pytest.raises(IntegrityError):
        pool.check_integrity([])


def test_an_empty_pool_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one"):
        BlockPool(0)
