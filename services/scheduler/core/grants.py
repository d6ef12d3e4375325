"""Grants given and not yet reported: which place on which server is taken by which step.

A grant is **fresh** until its time to start is over. From then on it is **overdue**: it either runs
(and the server counts it as occupied) or never will, so overdue grants weigh only as much as the
server says it is occupied. That way a router that died with a grant leaks nothing, and a step that
runs for an hour keeps its place.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from services.scheduler.core.step import Step


@dataclass(frozen=True, slots=True)
class Grant:
    grant_id: str
    step: Step
    member_id: str
    incarnation: str
    address: str
    epoch: int
    weight_seq: int
    blocks: int
    """KV blocks reserved for it on the server."""
    cached_tokens: int
    """Prompt tokens that the placement expects to find cached."""
    issued_at: float
    expires_at: float
    """Monotonic seconds; the step must start before."""


@dataclass(slots=True)
class Places:
    """The grants of one server, with running sums."""

    fresh: dict[str, Grant] = field(default_factory=dict)
    overdue: dict[str, Grant] = field(default_factory=dict)
    fresh_sequences: int = 0
    overdue_sequences: int = 0
    blocks: int = 0
    """Reserved by all of them."""

    def __bool__(self) -> bool:
        return bool(self.fresh or self.overdue)

    def load(self, occupied: int) -> int:
        """Sequences to count on, given how many the server says it has."""
        return self.fresh_sequences + min(self.overdue_sequences, occupied)

    def unknown(self, occupied: int) -> int:
        """Sequences on the server that were not granted here: self-placed ones, and those of the
        leader before."""
        return max(0, occupied - self.fresh_sequences - self.overdue_sequences)


class GrantTable:
    """Owned by one FleetState. Ids are `<epoch>.<n>`, so leaders never make the same one."""

    def __init__(self, epoch: int, start_within_s: float) -> None:
        self.epoch = epoch
        self.start_within_s = start_within_s
        self._issued = 0
        self._by_id: dict[str, Grant] = {}
        self._by_step: dict[str, Grant] = {}
        self._places: dict[str, Places] = {}

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[Grant]:
        return iter(self._by_id.values())

    def of_step(self, step_id: str) -> Grant | None:
        return self._by_step.get(step_id)

    def of_id(self, grant_id: str) -> Grant | None:
        return self._by_id.get(grant_id)

    def places(self, member_id: str) -> Places:
        return self._places.get(member_id) or Places()

    def next_id(self) -> str:
        self._issued += 1
        return f"{self.epoch:x}.{self._issued:x}"

    def add(self, grant: Grant) -> None:
        """Takes the place. The step must hold none."""
        assert grant.step.step_id not in self._by_step
        self._by_id[grant.grant_id] = grant
        self._by_step[grant.step.step_id] = grant
        places = self._places.setdefault(grant.member_id, Places())
        places.fresh[grant.grant_id] = grant
        places.fresh_sequences += grant.step.choices
        places.blocks += grant.blocks

    def remove(self, grant_id: str) -> Grant | None:
        """Returns the place; None when it was returned before."""
        grant = self._by_id.pop(grant_id, None)
        if grant is None:
            return None
        del self._by_step[grant.step.step_id]
        places = self._places[grant.member_id]
        if places.fresh.pop(grant_id, None) is not None:
            places.fresh_sequences -= grant.step.choices
        else:
            del places.overdue[grant_id]
            places.overdue_sequences -= grant.step.choices
        places.blocks -= grant.blocks
        if not places:
            del self._places[grant.member_id]
        return grant

    def remove_member(self, member_id: str) -> list[Grant]:
        """The server is gone, and what was granted on it with it."""
        places = self.places(member_id)
        ids = [*places.fresh, *places.overdue]
        return [grant for grant_id in ids if (grant := self.remove(grant_id)) is not None]

    def age(self, member_id: str, now: float) -> None:
        """Moves what is past its time to start; grants expire in the order of issue."""
        places = self._places.get(member_id)
        while places and places.fresh:
            grant = next(iter(places.fresh.values()))
            if grant.expires_at > now:
                return
            del places.fresh[grant.grant_id]
            places.overdue[grant.grant_id] = grant
            places.fresh_sequences -= grant.step.choices
            places.overdue_sequences += grant.step.choices

    def forget_overdue(self, member_id: str, expired_before: float) -> list[Grant]:
        """Drops grants whose time was over before then: they can no longer start or be running."""
        old = [g for g in self.places(member_id).overdue.values() if g.expires_at < expired_before]
        for grant in old:
            self.remove(grant.grant_id)
        return old

    def check_integrity(self) -> None:
        """Raises AssertionError where the sums differ from what they sum."""
        seen: dict[str, Grant] = {}
        for member_id, places in self._places.items():
            assert places, f"{member_id} keeps empty places"
            assert not places.fresh.keys() & places.overdue.keys()
            both = {**places.fresh, **places.overdue}
            assert all(grant.member_id == member_id for grant in both.values())
            assert places.blocks == sum(g.blocks for g in both.values())
            assert places.fresh_sequences == sum(g.step.choices for g in places.fresh.values())
            assert places.overdue_sequences == sum(g.step.choices for g in places.overdue.values())
            seen |= both
        assert seen == self._by_id
        assert {g.step.step_id: g for g in seen.values()} == self._by_step
        assert len(self._by_step) == len(self._by_id)
