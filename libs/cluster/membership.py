"""Being a member: the registration of this process under a lease.

One task writes the key. It registers, writes new info, and when the lease is lost (etcd ran without
hearing of this process for longer than the time to live) registers again, under a new lease and a
new epoch. After an outage in which etcd let nothing expire the registration is simply held again.
Another task watches the key and wakes the first whenever it holds something else than was written.
A registration is a fresh key, so that epochs grow; every write compares the revision of the one
before, so that a write delayed in the network cannot bring back an older life of this member.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Self

from libs.cluster import keys
from libs.cluster.client import EtcdClient
from libs.cluster.entry import Entry
from libs.cluster.errors import (
    PASSING,
    ClusterError,
    LeaseLost,
    OutcomeUnknown,
    RecordUnreadable,
)
from libs.cluster.lease import Lease
from libs.cluster.member import decode_member, encode_member
from libs.cluster.ops import Compare, Delete, Get, Put
from libs.cluster.patience import RETRY_S, Patience
from libs.cluster.watch import DeleteEvent, PutEvent, Snapshot, WatchItem
from libs.lasting import lasting

log = logging.getLogger(__name__)

TRANSIENT = (*PASSING, LeaseLost)


class Membership:
    """`async with Membership(...)` registers, and leaves at the end.

    `incarnation` is a random name for this life of the process. A process that starts under the id
    of another one takes its place; the replaced one sees that at once, stops and sets `superseded`.
    `on_rejoin(epoch)` is called after every registration but the first: claims of the older epoch
    are void.
    """

    def __init__(
        self,
        client: EtcdClient,
        service: str,
        member_id: str,
        info: Mapping[str, Any],
        *,
        incarnation: str,
        ttl_s: int = 10,
        on_rejoin: Callable[[int], None] | None = None,
    ) -> None:
        self.key = keys.member(service, member_id)
        self.incarnation = incarnation
        self.superseded = asyncio.Event()
        self.epoch = 0
        self._client = client
        self._ttl_s = ttl_s
        self._on_rejoin = on_rejoin
        self._lease: Lease | None = None
        self._mod_revision = 0
        self._wanted = encode_member(incarnation, info)
        self._written: bytes | None = None
        self._wake = asyncio.Event()
        self._settled = asyncio.Condition()
        self._doubted = False
        self._patience = Patience(f"member {self.key}", log)
        self._tasks: tuple[asyncio.Task[None], ...] = ()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.leave()

    async def start(self) -> None:
        """Registers; ClusterUnavailable if etcd cannot be reached now, PermissionRefused if it lets
        nobody in. Waits for a store that is full. From then on it keeps trying by itself."""
        while not self.registered:
            try:
                await self._join()
            except (OutcomeUnknown, LeaseLost) as error:
                await self._patience.rest(error)
        self._tasks = (
            lasting(self._run(), f"member {self.key}"),
            lasting(self._watch(), f"watch of member {self.key}"),
        )

    @property
    def registered(self) -> bool:
        """True while others can see this registration for certain."""
        return self.epoch > 0 and self._lease is not None and self._lease.held

    def publish(self, info: Mapping[str, Any]) -> None:
        """Replaces the info, as soon as etcd takes it; the newest wins. Never waits."""
        self._wanted = encode_member(self.incarnation, info)
        self._wake.set()

    async def update(self, info: Mapping[str, Any]) -> None:
        """Replaces the info and returns once others can see it (or `superseded` is set)."""
        self.publish(info)
        wanted = self._wanted
        async with self._settled:
            await self._settled.wait_for(
                lambda: (
                    self._written == wanted or wanted != self._wanted or self.superseded.is_set()
                )
            )

    async def leave(self) -> None:
        """Deregisters at once; if etcd is away the lease expires by itself."""
        tasks, self._tasks = self._tasks, ()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._lease is not None:
            await self._lease.revoke()

    async def _run(self) -> None:
        while not self.superseded.is_set():
            try:
                if self._is_unregistered():
                    await self._join()
                elif self._doubted:
                    await self._confirm()
                elif self._written != self._wanted:
                    await self._rewrite()
                else:
                    self._patience.over()
                    await self._sleep()
            except TRANSIENT as error:
                await self._patience.rest(error)
        log.error("member %s: another process has taken this id", self.key)
        async with self._settled:
            self._settled.notify_all()

    def _is_unregistered(self) -> bool:
        """A lease in doubt is none that is lost: its registration may outlive an outage of etcd."""
        return self.epoch == 0 or self._lease is None or self._lease.lost.is_set()

    async def _sleep(self) -> None:
        """Until there is new info to write, the key is in doubt, or the lease is lost."""
        assert self._lease is not None
        waits = [asyncio.ensure_future(event.wait()) for event in (self._wake, self._lease.lost)]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        self._wake.clear()

    async def _watch(self) -> None:
        patience = Patience(f"watch of member {self.key}", log)
        while not self.superseded.is_set():
            try:
                async with self._client.watch(self.key) as watch:
                    async for item in watch:
                        if not self._is_ours(item):
                            self._doubted = True
                            self._wake.set()
            except ClusterError as error:
                await patience.rest(error)

    def _is_ours(self, item: WatchItem) -> bool:
        """True unless the item tells of this key and holds something else than this registration.
        A watch is of a prefix: other members' ids may begin with this one's."""
        lease_id = self._lease.id if self._lease is not None else 0
        match item:
            case Snapshot(entries=entries):
                return any(each.key == self.key and each.lease == lease_id for each in entries)
            case PutEvent(entry=entry):
                return entry.key != self.key or entry.lease == lease_id
            case DeleteEvent(key=key):
                return key != self.key

    async def _confirm(self) -> None:
        """Reads what the key holds; gives way, or registers again, if that is not ours."""
        assert self._lease is not None
        self._doubted = False
        entry = await self._client.get(self.key)
        if entry is None:
            # Another life may be between its delete and its put.
            await asyncio.sleep(RETRY_S)
            entry = await self._client.get(self.key)
        if entry is not None and entry.lease == self._lease.id:
            return
        if entry is not None and self._is_another_life(entry):
            await self._give_way()
        else:
            self._lease.abandon()

    async def _join(self) -> None:
        """One try to register; does nothing if a compare shows that the key changed meanwhile."""
        if self._lease is None or not self._lease.held:
            if self._lease is not None:
                self._lease.abandon()
            self._lease = await self._client.lease(self._ttl_s)
        entry = await self._client.get(self.key)
        if entry is not None and entry.lease == self._lease.id:
            await self._joined(entry.create_revision, entry.mod_revision, entry.value)
        elif entry is not None:
            await self._clear(entry)
        else:
            value = self._wanted
            put = Put(self.key, value, self._lease.id)
            result = await self._client.txn([Compare.absent(self.key)], [put])
            if result.succeeded:
                await self._joined(result.revision, result.revision, value)

    async def _clear(self, entry: Entry) -> None:
        """Removes what an earlier life, or an earlier registration of this one, left behind."""
        if self.epoch and self._is_another_life(entry):
            await self._give_way()
            return
        unchanged = Compare.mod(self.key) == entry.mod_revision
        await self._client.txn([unchanged], [Delete(self.key)])

    def _is_another_life(self, entry: Entry) -> bool:
        try:
            return decode_member(entry).incarnation != self.incarnation
        except RecordUnreadable:
            return False

    async def _joined(self, epoch: int, mod_revision: int, value: bytes) -> None:
        again = self.epoch > 0
        self.epoch = epoch
        await self._wrote(mod_revision, value)
        if again:
            log.warning("member %s registered again, epoch %d", self.key, epoch)
            if self._on_rejoin is not None:
                self._on_rejoin(epoch)

    async def _rewrite(self) -> None:
        assert self._lease is not None
        value = self._wanted
        put = Put(self.key, value, self._lease.id)
        unchanged = Compare.mod(self.key) == self._mod_revision
        result = await self._client.txn([unchanged], [put], [Get(self.key)])
        entry = None if result.succeeded else result.entry()
        if result.succeeded:
            await self._wrote(result.revision, value)
        elif entry is not None and entry.lease == self._lease.id:
            # Our own write, whose answer was lost.
            await self._wrote(entry.mod_revision, entry.value)
        elif entry is not None and self._is_another_life(entry):
            await self._give_way()
        else:
            self._lease.abandon()

    async def _wrote(self, mod_revision: int, value: bytes) -> None:
        self._mod_revision = mod_revision
        async with self._settled:
            self._written = value
            self._settled.notify_all()

    async def _give_way(self) -> None:
        self.superseded.set()
        if self._lease is not None:
            await self._lease.revoke()
