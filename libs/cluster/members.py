"""The live members of a service, as others see them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

from libs.cluster.client import EtcdClient
from libs.cluster.entry import Entry
from libs.cluster.errors import RecordUnreadable
from libs.cluster.follower import Follower, Following
from libs.cluster.keys import members_prefix
from libs.cluster.member import Member, decode_member
from libs.cluster.roster import Roster
from libs.cluster.watch import DeleteEvent, PutEvent, Snapshot, WatchItem

log = logging.getLogger(__name__)


class Members(Following):
    """`async with Members(client, "modelserver") as members: members.current()`.

    Goes on serving the known members while etcd is away, and gives each `grace_s` (its time to
    live) to register again afterwards.
    """

    def __init__(
        self, client: EtcdClient, service: str, *, grace_s: float = 10.0, silence_s: float = 3.0
    ) -> None:
        self._roster = Roster(grace_s)
        self._follower = Follower(
            client, members_prefix(service), _Feed(self._roster), silence_s=silence_s
        )

    def current(self) -> Mapping[str, Member]:
        """By member id; a copy that does not change."""
        return self._roster.members

    @property
    def doubted(self) -> frozenset[str]:
        """Ids among the current ones whose registration is gone since an outage of etcd."""
        return self._roster.doubted

    async def wait_for(self, count: int, *, timeout_s: float | None = None) -> Mapping[str, Member]:
        """Waits until there are at least `count`; TimeoutError after `timeout_s`."""
        async with asyncio.timeout(timeout_s):
            await self.wait_until(lambda: len(self._roster.members) >= count)
        return self.current()


class _Feed:
    """From watch items to the roster."""

    def __init__(self, roster: Roster) -> None:
        self._roster = roster

    def apply(self, item: WatchItem, now: float, recovered_at: float) -> None:
        match item:
            case Snapshot(entries=entries):
                read = [member for entry in entries if (member := _readable(entry))]
                self._roster.replace({each.id: each for each in read}, now, recovered_at)
            case PutEvent(entry=entry):
                member = _readable(entry)
                if member:
                    self._roster.add(member)
            case DeleteEvent(key=key):
                self._roster.remove(key.rsplit("/", 1)[-1], now, recovered_at)

    def next_due(self) -> float | None:
        return self._roster.next_due()

    def expire(self, now: float) -> None:
        self._roster.expire(now)


def _readable(entry: Entry) -> Member | None:
    """One member with an unreadable record must not blind us to the others."""
    try:
        return decode_member(entry)
    except RecordUnreadable as error:
        log.error("%s", error)
        return None
