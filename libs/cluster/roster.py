"""Which members to count on: a pure state machine over what the watch tells.

After an outage of etcd every lease may have expired though every member lives. So a member that
vanishes within the grace period after contact was found again is kept, as doubted, until the period
is over or it has registered again. In quiet times a member that vanishes is gone at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from libs.cluster.member import Member


class Roster:
    """`now` and `recovered_at` are seconds of one clock; `recovered_at` -inf means never away."""

    def __init__(self, grace_s: float) -> None:
        self._grace_s = grace_s
        self._members: dict[str, Member] = {}
        self._doubted: dict[str, float] = {}

    @property
    def members(self) -> Mapping[str, Member]:
        """All to count on, by id, doubted ones included."""
        return MappingProxyType(dict(self._members))

    @property
    def doubted(self) -> frozenset[str]:
        return frozenset(self._doubted)

    def replace(self, members: Mapping[str, Member], now: float, recovered_at: float) -> None:
        for gone in self._members.keys() - members.keys():
            self.remove(gone, now, recovered_at)
        for member in members.values():
            self.add(member)

    def add(self, member: Member) -> None:
        self._members[member.id] = member
        self._doubted.pop(member.id, None)

    def remove(self, member_id: str, now: float, recovered_at: float) -> None:
        until = recovered_at + self._grace_s
        if member_id not in self._members:
            return
        if now < until:
            self._doubted[member_id] = until
        else:
            del self._members[member_id]
            self._doubted.pop(member_id, None)

    def next_due(self) -> float | None:
        """When `expire` will next drop someone."""
        return min(self._doubted.values(), default=None)

    def expire(self, now: float) -> None:
        for member_id in [each for each, until in self._doubted.items() if until <= now]:
            del self._doubted[member_id]
            del self._members[member_id]
