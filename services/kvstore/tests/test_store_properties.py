"""Any sequence of operations keeps the store's promises."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from services.kvstore.core.store import OVERHEAD_BYTES, BlockStore, PutOutcome
from services.kvstore.tests.factories import LAYOUT, block_of, key_of

NAMES = st.integers(0, 11)
LEASES = st.sampled_from([0.0, 0.0, 1.0, 5.0])
LIMIT = 5 * (100 + 4 + OVERHEAD_BYTES)


class StoreMachine(RuleBasedStateMachine):
    """`ever` holds every name that was put: what is held must be among them, bytes unchanged."""

    def __init__(self) -> None:
        super().__init__()
        self.store = BlockStore(LIMIT)
        self.ever: set[int] = set()
        self.now = 0.0

    @rule(name=NAMES, lease_s=LEASES)
    def put(self, name: int, lease_s: float) -> None:
        was_held = self.store.held_prefix([key_of(name)], "") == 1
        outcome = self.store.put(block_of(name, size=100), self.now, lease_s)
        assert outcome is (PutOutcome.PRESENT if was_held else PutOutcome.STORED)
        assert self.store.held_prefix([key_of(name)], "") == 1  # a put always finds room
        self.ever.add(name)

    @rule(name=NAMES)
    def get(self, name: int) -> None:
        is_held = self.store.held_prefix([key_of(name)], "") == 1
        block = self.store.get(key_of(name), LAYOUT, self.now)
        assert (block is not None) == is_held
        if block is not None:
            assert name in self.ever
            assert block == block_of(name, size=100)

    @rule(names=st.lists(NAMES, max_size=4), lease_s=LEASES)
    def touch(self, names: list[int], lease_s: float) -> None:
        before = len(self.store)
        self.store.touch([key_of(name) for name in names], self.now, lease_s)
        assert len(self.store) == before

    @rule(names=st.lists(NAMES, max_size=3))
    def delete(self, names: list[int]) -> None:
        self.store.delete([key_of(name) for name in names])
        assert all(self.store.held_prefix([key_of(name)], "") == 0 for name in names)

    @rule(seconds=st.floats(0, 10))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @invariant()
    def the_books_are_right(self) -> None:
        self.store.check_integrity()


TestStoreMachine = StoreMachine.TestCase
TestStoreMachine.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
