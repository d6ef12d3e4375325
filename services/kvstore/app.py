"""The store in its process: the clock put in, the metrics taken out.

One writer: the event loop's thread, which runs each method to its end.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from libs.obs import Metrics
from services.kvstore.core.block import Block
from services.kvstore.core.store import BlockStore, PutOutcome
from services.kvstore.ports import Now


class KvStoreApp:
    """`store` belongs to the app from here on; others only read its counters."""

    def __init__(self, store: BlockStore, clock: Now, metrics: Metrics) -> None:
        self.store = store
        self._clock = clock
        metrics.gauge("impala_kvstore_limit_bytes", "Most bytes held.").set(store.limit_bytes)
        used = metrics.gauge("impala_kvstore_used_bytes", "Bytes held.")
        used.set_function(lambda: store.used_bytes)
        blocks = metrics.gauge("impala_kvstore_blocks", "Blocks held.")
        blocks.set_function(lambda: len(store))
        events = metrics.gauge(
            "impala_kvstore_events", "Blocks since start, by what happened to them.", ["what"]
        )
        for what in ("hits", "misses", "puts", "corrupt", "refused", "evicted"):
            events.labels(what).set_function(partial(getattr, store.counters, what))

    def put(self, block: Block, lease_s: float) -> PutOutcome:
        return self.store.put(block, self._clock.now(), lease_s)

    def fetch(
        self, keys: Sequence[bytes], layout: str, *, prefix_only: bool
    ) -> Iterator[tuple[int, Block]]:
        """Position and block of each key that is held, looked up as the iteration goes on; ends at
        the first miss with `prefix_only`. However it ends, what was found is left in the order of
        use that lets a chain be evicted from its end: a suffix without its prefix is of no use."""
        found: list[bytes] = []
        try:
            for index, key in enumerate(keys):
                block = self.store.get(key, layout, self._clock.now())
                if block is not None:
                    found.append(key)
                    yield index, block
                elif prefix_only:
                    return
        finally:
            self.store.touch(found, self._clock.now())

    def held_prefix(self, keys: Sequence[bytes], layout: str) -> int:
        return self.store.held_prefix(keys, layout)

    def touch(self, keys: Sequence[bytes], lease_s: float) -> int:
        return self.store.touch(keys, self._clock.now(), lease_s)

    def delete(self, keys: Sequence[bytes]) -> int:
        return self.store.delete(keys)
