"""Records in etcd as the router reads and lists them.

Listings go by key: ids begin with their creation time, so key order is time order, ties included,
and a page goes on after an id whether or not that record still exists.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, NamedTuple, TypeVar

import msgspec

from etcd.api.etcdserverpb import rpc_pb2
from libs.cluster.client import EtcdClient
from libs.cluster.entry import Entry, entry_of, prefix_end

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
    return msgspec.json.decode(entry.value, type=kind)


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
        entries, more = await _range(client, prefix, cursor, want, newest_first)
        for entry in entries:
            record = decode(entry, kind)
            if not keep(record):
                continue
            if len(found) == limit:
                return Page(found, True)
            found.append(record)
        if not more:
            return Page(found, False)
        cursor, want = entries[-1].key, _CHUNK


async def _range(
    client: EtcdClient, prefix: str, cursor: str, limit: int, newest_first: bool
) -> tuple[list[Entry], bool]:
    first, end = prefix.encode(), prefix_end(prefix)
    if cursor and newest_first:
        end = cursor.encode()
    elif cursor:
        first = cursor.encode() + b"\0"
    request = rpc_pb2.RangeRequest(
        key=first,
        range_end=end,
        limit=limit,
        sort_order=rpc_pb2.RangeRequest.DESCEND if newest_first else rpc_pb2.RangeRequest.ASCEND,
        sort_target=rpc_pb2.RangeRequest.KEY,
    )
    response = await client.transport.read(lambda endpoint: endpoint.kv.Range, request)
    return [entry_of(kv) for kv in response.kvs], response.more
