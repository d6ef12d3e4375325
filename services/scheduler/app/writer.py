"""Writes that only a leader may make, and reads of the same records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

import msgspec

from libs.clock import Clock
from libs.cluster.client import EtcdClient
from libs.cluster.errors import ClusterUnavailable, OutcomeUnknown
from libs.cluster.ops import Compare, Op, Put

RETRY_S = 0.2

R = TypeVar("R", bound=msgspec.Struct)


class LeadershipLost(Exception):
    """This process no longer leads: whatever it was doing for the role ends here."""


class Leads(Protocol):
    """What the work of a leader needs of its `Leadership`."""

    epoch: int

    @property
    def held(self) -> bool: ...

    def guard(self) -> Compare: ...


class GuardedWriter:
    """Every transaction compares the leader's election key. As the leader is the only writer of
    what it writes, a transaction whose outcome is unknown is simply sent again."""

    def __init__(self, client: EtcdClient, leadership: Leads, clock: Clock) -> None:
        self.epoch = leadership.epoch
        self._client = client
        self._leadership = leadership
        self._clock = clock

    async def commit(self, ops: Sequence[Op]) -> None:
        """Applies all or nothing; returns once applied. Raises LeadershipLost."""
        guard = self._leadership.guard()
        while self._leadership.held:
            try:
                result = await self._client.txn([guard], ops)
            except (OutcomeUnknown, ClusterUnavailable):
                await self._clock.sleep(RETRY_S)
                continue
            if result.succeeded:
                return
            break
        raise LeadershipLost(f"epoch {self.epoch} is over")

    async def read(self, key: str, kind: type[R]) -> R | None:
        """The record at `key`; waits for etcd while this process leads. Raises LeadershipLost."""
        while self._leadership.held:
            try:
                entry = await self._client.get(key)
            except ClusterUnavailable:
                await self._clock.sleep(RETRY_S)
                continue
            return None if entry is None else msgspec.json.decode(entry.value, type=kind)
        raise LeadershipLost(f"epoch {self.epoch} is over")


def put_record(key: str, record: msgspec.Struct) -> Put:
    return Put(key, msgspec.json.encode(record))
