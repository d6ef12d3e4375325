"""Records in etcd as the router reads and lists them.

Listings go by key: ids begin with their creation time, so key order is time order, ties included,
and a page goes on after an id whether or not that record still exists.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, NamedTuple, TypeVar

import msgspec

from libs.cluster.client import EtcdClient
from libs.cluster.entry import Entry
from libs.cluster.errors import RecordUnreadable

Record = TypeVar("Record", bound=msgspec.Struct)

_CHUNK = 500


class Stored(NamedTuple, Generic[Record]):
    """A record and the revision that last wrote it: what a compare-and-set compares."""

    record: Record
    mod_revision: int


class Page(NamedTuple, Generic[Record]):
    records: list[Record]
    has_more: bool
    """Another page would not be empty."""


async def load(client: EtcdClient, key: str, kind: type[Record]) -> Stored[Record] | None:
    """The record at `key`, None where there is none."""
    entry = await client.get(key)
    return None if entry is None else Stored(decode(entry, kind), entry.mod_revision)


def decode(entry: Entry, kind: type[Record]) -> Record:
    """Raises RecordUnreadable, which names the key."""
    try:
        return msgspec.json.decode(entry.value, type=kind)
    except msgspec.MsgspecError as error:
        raise RecordUnreadable(f"{entry.key} cannot be read: {error}") from error


def encode(record: msgspec.Struct) -> bytes:
    return msgspec.json.encode(record)


async def list_page(
    client: EtcdClient,
    prefix: str,
    kind: type[Record],
    *,
    limit: int,
    after: str = "",
    newest_first: bool = True,
    keep: Callable[[Record], bool] = lambda _: True,
) -> Page[Record]:
    """Up to `limit` records under `prefix` that `keep` wants, beyond the id `after`."""
    found: list[Record] = []
    cursor = prefix + after if after else ""
    # One more than asked for, to know whether there are more; further on, `keep` is choosy.
    want = min(limit + 1, _CHUNK)
    while True:
        listing = await client.list(prefix, limit=want, after=cursor, descending=newest_first)
        for entry in listing.entries:
            record = decode(entry, kind)
            if not keep(record):
                continue
            if len(found) == limit:
                return Page(found, True)
            found.append(record)
        if not listing.more:
            return Page(found, False)
        cursor, want = listing.entries[-1].key, _CHUNK
