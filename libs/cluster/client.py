"""The etcd client: keys, compare-and-set, transactions; and the door to watches and leases.

Every read is linearizable. No write is ever repeated behind the caller's back: see transport.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from etcd.api.etcdserverpb import rpc_pb2
from libs.cluster.entry import Entry, Listing, entry_of, prefix_end
from libs.cluster.errors import StoreFull
from libs.cluster.lease import Lease, revoke_lease
from libs.cluster.ops import Compare, Get, Op, Put, TxnResult, txn_request, txn_result
from libs.cluster.transport import Password, Transport
from libs.cluster.watch import Watch
from libs.rpc.tls import ClientTls

PAGE = 1000
OPERATIONS = 128
"""Most of one transaction, unless etcd is told otherwise."""


class EtcdClient:
    """Made and used on one event loop. Connections open at the first call.

    `per_try_timeout_s` bounds one attempt of a read, `write_timeout_s` the one attempt of a write
    (longer: giving up on a write costs an unknown outcome), `deadline_s` a call in all. With a
    client certificate in `tls`, its common name is etcd's user, and no password is needed.
    """

    def __init__(
        self,
        endpoints: Sequence[str],
        *,
        tls: ClientTls | None = None,
        user: str | None = None,
        password: Password = None,
        per_try_timeout_s: float = 1.0,
        write_timeout_s: float = 2.5,
        deadline_s: float = 5.0,
    ) -> None:
        self.transport = Transport(
            endpoints,
            tls=tls,
            user=user,
            password=password,
            per_try_timeout_s=per_try_timeout_s,
            write_timeout_s=write_timeout_s,
            deadline_s=deadline_s,
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        await self.transport.close()

    async def get(self, key: str, *, revision: int = 0) -> Entry | None:
        """The entry now, or as it was at `revision` (Compacted if that is forgotten)."""
        request = rpc_pb2.RangeRequest(key=key.encode(), revision=revision)
        response = await self.transport.read(lambda endpoint: endpoint.kv.Range, request)
        return entry_of(response.kvs[0]) if response.kvs else None

    async def get_many(self, keys: Sequence[str]) -> list[Entry | None]:
        """The entries now, in as few transactions as etcd allows; each of these is one revision. A
        store that is full refuses transactions, also those that only read: then key by key."""
        found: list[Entry | None] = []
        for at in range(0, len(keys), OPERATIONS):
            part = keys[at : at + OPERATIONS]
            request = txn_request([], [Get(key) for key in part], [])
            try:
                response = await self.transport.read(lambda endpoint: endpoint.kv.Txn, request)
            except StoreFull:
                found += await asyncio.gather(*(self.get(key) for key in part))
            else:
                result = txn_result(response)
                found += [result.entry(number) for number in range(len(part))]
        return found

    async def list(
        self, prefix: str, *, limit: int | None = None, after: str = "", descending: bool = False
    ) -> Listing:
        """Entries under `prefix` by key, from the first key beyond `after` on (which need not
        exist): greater ones, or with `descending` lesser ones, greatest first.

        Without a limit: all of them, read in pages at one revision, however many there are.
        """
        if limit is not None:
            return await self._page(prefix, after, limit, 0, descending)
        page = await self._page(prefix, after, PAGE, 0, descending)
        entries = list(page.entries)
        while page.more:
            page = await self._page(prefix, entries[-1].key, PAGE, page.revision, descending)
            entries.extend(page.entries)
        return Listing(tuple(entries), page.revision)

    async def list_newest(self, prefix: str, *, limit: int, created_before: int = 0) -> Listing:
        """The entries created last, newest first; `created_before` (a create revision, itself left
        out; 0 means none) continues an earlier list."""
        request = rpc_pb2.RangeRequest(
            key=prefix.encode(),
            range_end=prefix_end(prefix),
            limit=limit,
            sort_order=rpc_pb2.RangeRequest.DESCEND,
            sort_target=rpc_pb2.RangeRequest.CREATE,
            max_create_revision=created_before - 1 if created_before else 0,
        )
        return await self._listing(request)

    async def _page(
        self, prefix: str, after: str, limit: int, revision: int, descending: bool
    ) -> Listing:
        first, end = prefix.encode(), prefix_end(prefix)
        if after and descending:
            end = after.encode()
        elif after:
            first = after.encode() + b"\0"
        # Unasked, etcd orders by key ascending; asked for that, it would read all to sort it.
        order = rpc_pb2.RangeRequest.DESCEND if descending else rpc_pb2.RangeRequest.NONE
        request = rpc_pb2.RangeRequest(
            key=first,
            range_end=end,
            limit=limit,
            revision=revision,
            sort_order=order,
            sort_target=rpc_pb2.RangeRequest.KEY,
        )
        listing = await self._listing(request)
        # The header tells the newest revision, also for a read of an older one.
        return Listing(listing.entries, revision or listing.revision, listing.more)

    async def _listing(self, request: rpc_pb2.RangeRequest) -> Listing:
        response = await self.transport.read(lambda endpoint: endpoint.kv.Range, request)
        entries = tuple(entry_of(kv) for kv in response.kvs)
        return Listing(entries, response.header.revision, response.more)

    async def put(self, key: str, value: bytes, lease: int | None = None) -> int:
        """Writes whatever is there; the revision. Two writers should use `cas`."""
        request = rpc_pb2.PutRequest(key=key.encode(), value=value, lease=lease or 0)
        response = await self.transport.write(lambda endpoint: endpoint.kv.Put, request)
        return response.header.revision

    async def delete(self, key: str) -> bool:
        """True if the key existed."""
        return await self._delete(rpc_pb2.DeleteRangeRequest(key=key.encode())) > 0

    async def delete_prefix(self, prefix: str) -> int:
        """The number of keys deleted."""
        return await self._delete(
            rpc_pb2.DeleteRangeRequest(key=prefix.encode(), range_end=prefix_end(prefix))
        )

    async def _delete(self, request: rpc_pb2.DeleteRangeRequest) -> int:
        response = await self.transport.write(lambda endpoint: endpoint.kv.DeleteRange, request)
        return response.deleted

    async def txn(
        self, compares: Sequence[Compare], then: Sequence[Op], else_: Sequence[Op] = ()
    ) -> TxnResult:
        """Applies `then` if every compare holds, else `else_`, at one revision."""
        request = txn_request(compares, then, else_)
        response = await self.transport.write(lambda endpoint: endpoint.kv.Txn, request)
        return txn_result(response)

    async def cas(
        self,
        key: str,
        expected_mod_revision: int | None,
        value: bytes,
        *,
        lease: int | None = None,
    ) -> int | None:
        """Writes if the key was last written at that revision (None: if it does not exist).

        The new revision, or None if the compare failed. OutcomeUnknown is not resolved here,
        because equal bytes do not prove whose write it was: see attempt.py.
        """
        compare = Compare.mod(key) == (expected_mod_revision or 0)
        result = await self.txn([compare], then=[Put(key, value, lease or 0)])
        return result.revision if result.succeeded else None

    async def compact(self, revision: int) -> None:
        """Makes etcd forget what was before the revision. etcd does so by itself if it is told to
        (`--auto-compaction-retention`); watches and reads of older revisions must cope."""
        request = rpc_pb2.CompactionRequest(revision=revision, physical=True)
        await self.transport.write(lambda endpoint: endpoint.kv.Compact, request)

    def watch(self, prefix: str, *, silence_s: float = 3.0) -> Watch:
        """A list-and-watch of everything under `prefix`; to be used with `async with`."""
        return Watch(self, prefix, silence_s=silence_s)

    async def lease(self, ttl_s: int) -> Lease:
        """A new lease that keeps itself alive until it is lost or revoked."""
        return await Lease.grant(self.transport, ttl_s)

    async def revoke(self, lease_id: int) -> None:
        """Ends anyone's lease, and deletes its keys."""
        await revoke_lease(self.transport, lease_id)
