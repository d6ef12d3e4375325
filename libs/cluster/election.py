"""Leader election with a fencing epoch.

The leader is whoever created `/impala/elections/<name>/leader`, under its own lease. The epoch is
that key's create revision: later leaders have higher ones. Every write that only the leader may do
compares it (`leadership.guard()`) in the same transaction, so a leader that was paused and wakes up
cannot write, whatever it believes. Standbys watch the key and stand when it goes.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import orjson

from libs.cluster.client import EtcdClient
from libs.cluster.entry import Entry
from libs.cluster.errors import PASSING, LeaseLost
from libs.cluster.keys import election_leader, election_prefix
from libs.cluster.lease import Lease
from libs.cluster.ops import Compare, Get, Put
from libs.cluster.patience import Patience
from libs.cluster.watch import DeleteEvent, PutEvent, Snapshot, WatchItem
from libs.lasting import lasting

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Leader:
    """Who leads, as observers see it."""

    candidate_id: str
    epoch: int


class Leadership:
    """Won by `Election.campaign`. `lost` is set when it has ended; it never comes back: campaign
    again for the next one, with a higher epoch. In between it may be in doubt, neither `held` nor
    `lost`: etcd has not been heard for so long that another may lead. What is under way may go on
    then (the guard protects the state), nothing may be given away."""

    def __init__(self, client: EtcdClient, key: str, epoch: int, lease: Lease) -> None:
        self.key = key
        self.epoch = epoch
        self.lost = lease.lost
        self._client = client
        self._lease = lease
        self._warden = lasting(self._stand_down_when_removed(), f"lead {key}")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.resign()

    @property
    def lease_id(self) -> int:
        """For keys that should go with the leadership."""
        return self._lease.id

    @property
    def held(self) -> bool:
        """False while the lease may have expired, also in a process that was just woken. What
        protects the state is the guard."""
        return self._lease.held

    @property
    def over(self) -> bool:
        """True once it has ended for certain."""
        return self._lease.lost.is_set()

    def guard(self) -> Compare:
        """Holds exactly as long as this leadership does."""
        return Compare.create(self.key) == self.epoch

    async def resign(self) -> None:
        """Hands over at once."""
        self._warden.cancel()
        await asyncio.gather(self._warden, return_exceptions=True)
        await self._lease.revoke()

    async def _stand_down_when_removed(self) -> None:
        """The key can go before the lease does: revoked by an operator, or deleted."""
        patience = Patience(f"watch of the leadership {self.key}", log)
        while not self.lost.is_set():
            try:
                async with self._client.watch(self.key) as watch:
                    async for item in watch:
                        if self._is_removed(item):
                            log.warning("leadership %s epoch %d was removed", self.key, self.epoch)
                            self._lease.abandon()
                            return
            except PASSING as error:
                await patience.rest(error)

    def _is_removed(self, item: WatchItem) -> bool:
        match item:
            case Snapshot(entries=entries):
                return all(entry.create_revision != self.epoch for entry in entries)
            case DeleteEvent(key=key):
                return key == self.key
            case PutEvent(entry=entry):
                return entry.key == self.key and entry.create_revision != self.epoch


class Election:
    """A candidate and observer of one election. `candidate_id` is what observers are told."""

    def __init__(
        self, client: EtcdClient, name: str, candidate_id: str, *, ttl_s: int = 10
    ) -> None:
        self.prefix = election_prefix(name)
        self.key = election_leader(name)
        self.candidate_id = candidate_id
        self._client = client
        self._ttl_s = ttl_s
        self._patience = Patience(f"election {self.key}", log)

    async def campaign(self) -> Leadership:
        """Waits until this candidate leads, also while etcd is away, full, or refuses access. May
        be cancelled."""
        while True:
            try:
                async with self._client.watch(self.prefix) as watch:
                    async for item in watch:
                        if self._is_vacant(item) and (leadership := await self._stand()):
                            self._patience.over()
                            return leadership
            except PASSING as error:
                await self._patience.rest(error)

    async def leader(self) -> Leader | None:
        entry = await self._client.get(self.key)
        return _leader_of(entry) if entry else None

    async def observe(self) -> AsyncGenerator[Leader | None, None]:
        """The leader now, then each change of it (None: vacant). Close it with `aclosing`."""
        seen: Leader | None = None
        first = True
        async with self._client.watch(self.prefix) as watch:
            async for item in watch:
                leader = self._leader_in(item)
                if first or leader != seen:
                    yield leader
                first, seen = False, leader

    def _is_vacant(self, item: WatchItem) -> bool:
        return self._leader_in(item) is None

    def _leader_in(self, item: WatchItem) -> Leader | None:
        match item:
            case Snapshot(entries=entries):
                return next((_leader_of(each) for each in entries if each.key == self.key), None)
            case PutEvent(entry=entry):
                return _leader_of(entry)
            case DeleteEvent():
                return None

    async def _stand(self) -> Leadership | None:
        """Tries until it is certain that this candidate leads, or that another one does (None)."""
        while True:
            with contextlib.suppress(LeaseLost):
                lease = await self._granted()
                epoch: int | None = None
                try:
                    epoch = await self._claim(lease)
                finally:
                    if epoch is None:
                        await lease.revoke()
                return Leadership(self._client, self.key, epoch, lease) if epoch else None

    async def _granted(self) -> Lease:
        while True:
            try:
                return await self._client.lease(self._ttl_s)
            except PASSING as error:
                await self._patience.rest(error)

    async def _claim(self, lease: Lease) -> int | None:
        """The epoch won, None if another candidate leads. Repeating the claim is safe: it takes
        effect only while the key is absent, and the lease on the key shows whose it was."""
        put = Put(self.key, orjson.dumps({"v": 1, "candidate": self.candidate_id}), lease.id)
        while lease.held:
            try:
                result = await self._client.txn(
                    [Compare.absent(self.key)], then=[put], else_=[Get(self.key)]
                )
            except PASSING as error:
                await self._patience.rest(error)
                continue
            if result.succeeded:
                return result.revision
            holder = result.entry()
            if holder is None or holder.lease != lease.id:
                return None
            return holder.create_revision
        raise LeaseLost(f"the lease ended before the outcome of the election {self.key} was known")


def _leader_of(entry: Entry) -> Leader:
    return Leader(orjson.loads(entry.value)["candidate"], entry.create_revision)
