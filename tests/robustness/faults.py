"""Which faults are injected when: drawn from a seed, without a process in sight."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    KILL = "kill"
    """SIGKILL of one process."""
    KILL_SEVERAL = "kill several"
    """SIGKILL of two to four at once."""
    KILL_ALL = "kill all"
    TERMINATE = "terminate"
    """SIGTERM: a drain."""
    PAUSE = "pause"
    """SIGSTOP past its lease, then SIGCONT."""
    CUT = "cut"
    """Its connections break, once."""
    PARTITION = "partition"
    """Its connections break and cannot be made again for a while."""
    DISK_FULL = "disk full"
    """It can write no file for a while."""


_WEIGHTS = {
    Kind.KILL: 45,
    Kind.KILL_SEVERAL: 14,
    Kind.KILL_ALL: 4,
    Kind.TERMINATE: 10,
    Kind.PAUSE: 9,
    Kind.CUT: 7,
    Kind.PARTITION: 6,
    Kind.DISK_FULL: 5,
}
BEFORE_CREATE = -1.0
"""Progress before the batches of a round are there: the fault meets their upload and creation."""
MOST_DELAY_S = 0.4


@dataclass(frozen=True, slots=True)
class Leases:
    """Seconds that a pause must last to outlive them."""

    election_s: float
    member_s: float


@dataclass(frozen=True, slots=True)
class Fault:
    """progress: share of the round's lines that are recorded when it comes, then delay_s passes.
    lasts_s: of what is undone later; 0 for the others."""

    kind: Kind
    members: tuple[str, ...]
    progress: float
    delay_s: float
    lasts_s: float = 0.0

    @property
    def service(self) -> str:
        """For a table: the kind of service, `several` or `all`."""
        if self.kind is Kind.KILL_ALL:
            return "all"
        return service_of(self.members[0]) if len(self.members) == 1 else "several"

    def __str__(self) -> str:
        lasting = f" for {self.lasts_s:.1f} s" if self.lasts_s else ""
        when = "before the batches are made" if self.progress < 0 else f"at {self.progress:.0%}"
        whom = "all" if self.kind is Kind.KILL_ALL else ", ".join(self.members)
        verb = "kill" if self.kind in (Kind.KILL_SEVERAL, Kind.KILL_ALL) else self.kind.value
        return f"{verb} {whom}{lasting} {when} + {self.delay_s:.2f} s"


def service_of(member: str) -> str:
    """`router-2` is a `router`."""
    return member.partition("-")[0]


def draw_round(seed: int, number: int, members: Sequence[str], leases: Leases) -> list[Fault]:
    """The faults of one round, by their progress. A round depends on nothing but its arguments, so
    that one can be run again alone."""
    rng = random.Random(f"{seed}/{number}")
    faults = [draw(rng, members, leases) for _ in range(rng.randint(1, 3))]
    return sorted(faults, key=lambda fault: (fault.progress, fault.delay_s))


def draw(rng: random.Random, members: Sequence[str], leases: Leases) -> Fault:
    kind = rng.choices(list(_WEIGHTS), list(_WEIGHTS.values()))[0]
    whom = _whom(rng, kind, members)
    progress = rng.choice((BEFORE_CREATE, 0.0, 1.0, *(rng.random() for _ in range(9))))
    return Fault(
        kind,
        whom,
        progress,
        rng.uniform(0.0, MOST_DELAY_S),
        _lasting(rng, kind, whom[0], leases),
    )


def _whom(rng: random.Random, kind: Kind, members: Sequence[str]) -> tuple[str, ...]:
    if kind is Kind.KILL_ALL:
        return tuple(members)
    if kind is Kind.KILL_SEVERAL:
        return tuple(sorted(rng.sample(list(members), rng.randint(2, min(4, len(members))))))
    if kind is Kind.DISK_FULL:
        # Who writes objects.
        return (rng.choice([m for m in members if service_of(m) in ("router", "scheduler")]),)
    # A kind of service first: two routers are not twice as likely as one kvstore.
    service = rng.choice(sorted({service_of(member) for member in members}))
    return (rng.choice([member for member in members if service_of(member) == service]),)


def _lasting(rng: random.Random, kind: Kind, member: str, leases: Leases) -> float:
    if kind is Kind.PAUSE:
        election = service_of(member) in ("scheduler", "etcd")
        return (leases.election_s if election else leases.member_s) + rng.uniform(0.5, 2.0)
    if kind in (Kind.PARTITION, Kind.DISK_FULL):
        return rng.uniform(0.5, leases.election_s + 2.0)
    return 0.0
