"""A live copy of everything under a prefix."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Generic, TypeVar

from libs.cluster.client import EtcdClient
from libs.cluster.entry import Entry
from libs.cluster.errors import RecordUnreadable
from libs.cluster.follower import Follower, Following
from libs.cluster.watch import DeleteEvent, PutEvent, Snapshot, WatchItem

log = logging.getLogger(__name__)

T = TypeVar("T")


class View(Following, Generic[T]):
    """`async with View(client, prefix, decode) as view: view.get(name)`.

    Names are keys without `strip` (by default the prefix). An entry that `decode` refuses with
    RecordUnreadable is logged and left out. In an outage of etcd the last known state stays.
    """

    def __init__(
        self,
        client: EtcdClient,
        prefix: str,
        decode: Callable[[Entry], T],
        *,
        strip: str | None = None,
        silence_s: float = 3.0,
    ) -> None:
        self._table = _Table(decode, prefix if strip is None else strip)
        self._follower = Follower(client, prefix, self._table, silence_s=silence_s)

    def get(self, name: str) -> T | None:
        return self._table.values.get(name)

    def all(self) -> Mapping[str, T]:
        """A read-only window on the live state: copy it to keep it."""
        return MappingProxyType(self._table.values)


class _Table(Generic[T]):
    def __init__(self, decode: Callable[[Entry], T], strip: str) -> None:
        self.values: dict[str, T] = {}
        self._decode = decode
        self._strip = strip

    def apply(self, item: WatchItem, now: float, recovered_at: float) -> None:
        match item:
            case Snapshot(entries=entries):
                self.values.clear()
                for entry in entries:
                    self._set(entry)
            case PutEvent(entry=entry):
                self._set(entry)
            case DeleteEvent(key=key):
                self.values.pop(key.removeprefix(self._strip), None)

    def next_due(self) -> float | None:
        return None

    def expire(self, now: float) -> None:
        return None

    def _set(self, entry: Entry) -> None:
        name = entry.key.removeprefix(self._strip)
        try:
            self.values[name] = self._decode(entry)
        except RecordUnreadable as error:
            log.error("%s", error)
            self.values.pop(name, None)
