"""The store's decisions: what is held, what goes first, what is refused."""

from __future__ import annotations

import dataclasses

import pytest

from libs.errors import InvalidArgument
from services.kvstore.core.block import Block, split_keys
from services.kvstore.core.store import OVERHEAD_BYTES, BlockStore, PutOutcome
from services.kvstore.tests.factories import LAYOUT, PAYLOAD_BYTES, block_of, key_of

COST = PAYLOAD_BYTES + 4 + OVERHEAD_BYTES


def store_for(blocks: int) -> BlockStore:
    return BlockStore(blocks * COST)


def filled(store: BlockStore, *names: int | str, now: float = 0.0, lease_s: float = 0.0) -> None:
    for name in names:
        assert store.put(block_of(name), now, lease_s) is PutOutcome.STORED
        store.check_integrity()


def held(store: BlockStore) -> set[str]:
    keys = [*store._plain, *store._leased]
    return {key.lstrip(b"\0").decode() for key in keys}


class TestPutAndGet:
    def test_a_block_comes_back_as_it_was_put(self) -> None:
        store = store_for(2)
        filled(store, "a")
        assert store.get(key_of("a"), LAYOUT, 1.0) == block_of("a")
        assert (store.counters.puts, store.counters.hits, store.counters.misses) == (1, 1, 0)

    def test_a_held_block_is_not_stored_again(self) -> None:
        store = store_for(2)
        filled(store, "a")
        used = store.used_bytes
        assert store.put(block_of("a"), 1.0) is PutOutcome.PRESENT
        assert (store.used_bytes, store.counters.puts) == (used, 1)

    def test_a_block_of_another_layout_is_a_miss_but_any_layout_matches_none(self) -> None:
        store = store_for(2)
        filled(store, "a")
        assert store.get(key_of("a"), "float16/2x3x4", 1.0) is None
        assert store.get(key_of("a"), "", 1.0) is not None
        assert store.held_prefix([key_of("a")], "float16/2x3x4") == 0

    @pytest.mark.parametrize("damage", [b"", b"short", bytes(PAYLOAD_BYTES)])
    def test_a_payload_that_does_not_match_its_header_is_refused(self, damage: bytes) -> None:
        store = store_for(2)
        damaged = dataclasses.replace(block_of("a"), payload=damage)
        assert store.put(damaged, 0.0) is PutOutcome.REFUSED
        assert (len(store), store.used_bytes, store.counters.refused) == (0, 0, 1)

    def test_a_block_larger_than_the_store_is_refused_and_evicts_nothing(self) -> None:
        store = store_for(2)
        filled(store, "a", "b")
        assert store.put(block_of("big", size=3 * COST), 0.0) is PutOutcome.REFUSED
        assert held(store) == {"a", "b"}

    def test_a_block_damaged_in_memory_is_dropped_counted_and_a_miss(self) -> None:
        store = store_for(2)
        filled(store, "a")
        _damage(store, "a")
        assert store.get(key_of("a"), LAYOUT, 1.0) is None
        assert (store.counters.corrupt, store.counters.misses, store.counters.hits) == (1, 1, 0)
        assert len(store) == 0
        assert store.put(block_of("a"), 2.0) is PutOutcome.STORED


class TestEviction:
    def test_the_least_recently_used_goes_first(self) -> None:
        store = store_for(3)
        filled(store, "a", "b", "c")
        store.get(key_of("a"), LAYOUT, 1.0)
        filled(store, "d")
        assert held(store) == {"a", "c", "d"}
        assert store.counters.evicted == 1

    def test_a_large_block_evicts_as_many_as_it_needs(self) -> None:
        store = store_for(4)
        filled(store, "a", "b", "c", "d")
        store.put(block_of("big", size=2 * COST), 0.0)
        store.check_integrity()
        assert held(store) == {"d", "big"}

    def test_a_touched_chain_goes_from_its_end(self) -> None:
        store = store_for(4)
        filled(store, "x", 1, 2, 3)
        assert store.touch([key_of(1), key_of(2), key_of(3), key_of("absent")], 1.0) == 3
        filled(store, "n1", "n2")
        assert held(store) == {"1", "2", "n1", "n2"}

    def test_asking_whether_a_block_exists_is_not_a_use(self) -> None:
        store = store_for(2)
        filled(store, "a", "b")
        assert store.held_prefix([key_of("a")], "") == 1
        filled(store, "c")
        assert held(store) == {"b", "c"}


class TestLease:
    def test_a_leased_block_outlives_more_recent_ones(self) -> None:
        store = store_for(2)
        filled(store, "leased", now=0.0, lease_s=60.0)
        filled(store, "b", "c", now=1.0)
        assert held(store) == {"leased", "c"}

    def test_a_lease_is_no_pin(self) -> None:
        store = store_for(2)
        filled(store, "a", "b", now=0.0, lease_s=60.0)
        filled(store, "c", "d", now=1.0, lease_s=60.0)
        assert held(store) == {"c", "d"}

    def test_a_block_whose_lease_ran_out_goes_before_all_others(self) -> None:
        store = store_for(3)
        filled(store, "old", now=0.0)
        filled(store, "leased", now=1.0, lease_s=10.0)
        filled(store, "recent", now=2.0)
        filled(store, "new", now=11.0)
        assert held(store) == {"old", "recent", "new"}

    def test_a_touch_renews_a_lease_and_never_shortens_it(self) -> None:
        store = store_for(2)
        filled(store, "leased", now=0.0, lease_s=10.0)
        store.touch([key_of("leased")], 5.0, lease_s=20.0)
        store.touch([key_of("leased")], 6.0, lease_s=1.0)
        filled(store, "b", "c", now=24.0)
        assert held(store) == {"leased", "c"}
        filled(store, "d", now=25.0)
        assert held(store) == {"c", "d"}

    def test_renewing_for_ever_does_not_grow_the_bookkeeping(self) -> None:
        store = store_for(2)
        filled(store, "a")
        for second in range(5000):
            store.touch([key_of("a")], float(second), lease_s=1e6)
        store.check_integrity()
        assert len(store._ends) < 2000


class TestPrefixAndDelete:
    def test_a_prefix_ends_at_its_first_gap(self) -> None:
        store = store_for(4)
        filled(store, 1, 2, 4)
        keys = [key_of(n) for n in (1, 2, 3, 4)]
        assert store.held_prefix(keys, LAYOUT) == 2
        assert store.held_prefix(keys[2:], LAYOUT) == 0
        assert store.held_prefix([], LAYOUT) == 0

    def test_deleting_twice_is_deleting_once(self) -> None:
        store = store_for(4)
        filled(store, 1, 2)
        assert store.delete([key_of(1), key_of(1), key_of(9)]) == 1
        assert store.delete([key_of(1)]) == 0
        store.check_integrity()
        assert held(store) == {"2"}


class TestChecks:
    @pytest.mark.parametrize(
        ("change", "field"),
        [
            ({"layout": ""}, "block.header.layout"),
            ({"tokens": 0, "token_ids": b""}, "block.header.tokens"),
            ({"payload_bytes": 0}, "block.header.payload_bytes"),
            ({"tokens": 2}, "block.header.token_ids"),
            ({"parent_key": b"short"}, "block.header.parent_key"),
        ],
    )
    def test_a_malformed_header_names_its_field(
        self, change: dict[str, object], field: str
    ) -> None:
        good = block_of("a")
        header = dataclasses.replace(good.header, **change)  # type: ignore[arg-type]
        with pytest.raises(InvalidArgument) as caught:
            dataclasses.replace(good, header=header).check()
        assert caught.value.field == field

    def test_a_key_of_another_length_is_malformed(self) -> None:
        with pytest.raises(InvalidArgument) as caught:
            Block(b"short", block_of("a").header, b"").check()
        assert caught.value.field == "block.key"

    def test_packed_keys_are_split_and_checked(self) -> None:
        assert split_keys(key_of(1) + key_of(2), "keys", limit=2) == [key_of(1), key_of(2)]
        assert split_keys(b"", "keys", limit=2) == []
        for packed, reason in [(b"x" * 17, "MALFORMED_KEYS"), (b"x" * 48, "TOO_MANY_KEYS")]:
            with pytest.raises(InvalidArgument) as caught:
                split_keys(packed, "chains[3].keys", limit=2)
            assert (caught.value.reason, caught.value.field) == (reason, "chains[3].keys")


def _damage(store: BlockStore, name: str) -> None:
    entry = store._plain[key_of(name)]
    flipped = bytes([entry.block.payload[0] ^ 1]) + entry.block.payload[1:]
    entry.block = dataclasses.replace(entry.block, payload=flipped)
