"""Writes that only a leader may make, and reads of the same records."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Protocol, TypeVar

import msgspec

from libs.clock import Clock
from libs.cluster.attempt import Applied, Refused, write_once
from libs.cluster.client import EtcdClient
from libs.cluster.errors import PASSING
from libs.cluster.ops import Compare, Op, Put
from libs.cluster.patience import Patience
from libs.records import keys

log = logging.getLogger(__name__)

R = TypeVar("R", bound=msgspec.Struct)


class LeadershipLost(Exception):
    """This process no longer leads: whatever it was doing for the role ends here."""


class Leads(Protocol):
    """What the work of a leader needs of its `Leadership`."""

    epoch: int

    @property
    def lease_id(self) -> int:
        """For keys that should go with the leadership."""
        ...

    @property
    def over(self) -> bool:
        """True once it has ended for certain; while it is in doubt the guard protects the state."""
        ...

    def guard(self) -> Compare: ...


class GuardedWriter:
    """Every transaction compares the leader's election key, and happens at most once. While etcd is
    away, full or refuses access it waits, so that what is done is recorded once that has passed.

    The election key does not change with a write, so it would not stop a copy of a transaction
    that was delayed in the network and arrives after a later one. A marker does: each write
    replaces the marker of the one before it, and it goes with the leadership.
    """

    def __init__(self, client: EtcdClient, leadership: Leads, clock: Clock) -> None:
        self.epoch = leadership.epoch
        self._client = client
        self._leadership = leadership
        self._marker = keys.leader_marker(leadership.epoch)
        self._marked_at = 0
        self._writes = 0
        self._patience = Patience(f"the leader of epoch {leadership.epoch}", log, clock.sleep)
        self._one_at_a_time = asyncio.Lock()

    async def commit(self, ops: Sequence[Op]) -> None:
        """Applies all or nothing; returns once applied. Raises LeadershipLost."""
        async with self._one_at_a_time:
            self._writes += 1
            token = str(self._writes).encode()
            put = Put(self._marker, token, self._leadership.lease_id)
            while not self._leadership.over:
                try:
                    outcome = await write_once(
                        self._client,
                        put,
                        lambda entry: entry.value == token,
                        expected=self._marked_at,
                        guard=self._leadership.guard(),
                        also=ops,
                    )
                except PASSING as error:
                    await self._patience.rest(error)
                    continue
                self._patience.over()
                revision = _applied_at(outcome, token)
                if revision is None:
                    break
                self._marked_at = revision
                return
        raise LeadershipLost(f"epoch {self.epoch} is over")

    async def read(self, key: str, kind: type[R]) -> R | None:
        """The record at `key`; waits for etcd until leadership is over. Raises LeadershipLost."""
        while not self._leadership.over:
            try:
                entry = await self._client.get(key)
            except PASSING as error:
                await self._patience.rest(error)
                continue
            return None if entry is None else msgspec.json.decode(entry.value, type=kind)
        raise LeadershipLost(f"epoch {self.epoch} is over")


def _applied_at(outcome: Applied | Refused, token: bytes) -> int | None:
    """When the write took effect. What an earlier call left in doubt shows in the marker, which
    nobody else writes."""
    if isinstance(outcome, Applied):
        return outcome.revision
    found = outcome.found
    return found.mod_revision if found is not None and found.value == token else None


def put_record(key: str, record: msgspec.Struct) -> Put:
    return Put(key, msgspec.json.encode(record))
