"""Which faults are injected when: drawn from a seed, without a process in sight."""

from __future__ import annotations

import random
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
    CLOCK = "clock jump"
    """Its wall clock is an hour ahead, or behind, for a while."""
    EXPIRY = "expiry"
    """The clocks of all schedulers are so far ahead that batches of the shortest window expire."""
    QUORUM = "quorum lost"
    """SIGSTOP of most of the etcd nodes for a while."""
    FROZEN = "read-only store"
    """Nothing can be written in the folder of the objects for a while."""
    STORE_ERRORS = "store errors"
    """The object store answers 500 for a while."""
    STORE_SLOW = "store slow"
    """It answers late, and its bodies trickle."""
    STORE_CUT = "store cut"
    """Requests to it break off, before and after they have taken effect."""


CLOCK_KINDS = frozenset({Kind.CLOCK, Kind.EXPIRY})
STORE_KINDS = frozenset({Kind.FROZEN, Kind.STORE_ERRORS, Kind.STORE_SLOW, Kind.STORE_CUT})
ALWAYS = frozenset(
    {
        Kind.KILL,
        Kind.KILL_SEVERAL,
        Kind.KILL_ALL,
        Kind.TERMINATE,
        Kind.PAUSE,
        Kind.CUT,
        Kind.PARTITION,
    }
)
"""What any cluster of processes can have."""
STORE = "store"
"""For a fault's member: no process of the cluster."""
HOUR_S = 3600.0

_WEIGHTS = {
    Kind.KILL: 45,
    Kind.KILL_SEVERAL: 14,
    Kind.KILL_ALL: 4,
    Kind.TERMINATE: 10,
    Kind.PAUSE: 9,
    Kind.CUT: 7,
    Kind.PARTITION: 6,
    Kind.DISK_FULL: 5,
    Kind.CLOCK: 10,
    Kind.EXPIRY: 7,
    Kind.QUORUM: 9,
    Kind.FROZEN: 7,
    Kind.STORE_ERRORS: 9,
    Kind.STORE_SLOW: 5,
    Kind.STORE_CUT: 9,
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
class Ground:
    """What there is to fail. kinds: of faults that it can have."""

    members: tuple[str, ...]
    leases: Leases
    kinds: frozenset[Kind] = ALWAYS

    def of(self, *services: str) -> list[str]:
        return [member for member in self.members if service_of(member) in services]


@dataclass(frozen=True, slots=True)
class Fault:
    """progress: share of the round's lines that are recorded when it comes, then delay_s passes.
    lasts_s: of what is undone later; 0 for the others. shift_s: of a clock."""

    kind: Kind
    members: tuple[str, ...]
    progress: float
    delay_s: float
    lasts_s: float = 0.0
    shift_s: float = 0.0

    @property
    def service(self) -> str:
        """For a table: the kind of service, `several` or `all`."""
        if self.kind is Kind.KILL_ALL:
            return "all"
        services = {service_of(member) for member in self.members}
        alike = len(self.members) == 1 or self.kind is not Kind.KILL_SEVERAL
        return services.pop() if len(services) == 1 and alike else "several"

    def __str__(self) -> str:
        lasting = f" of {self.shift_s:+.0f} s" if self.shift_s else ""
        lasting += f" for {self.lasts_s:.1f} s" if self.lasts_s else ""
        when = "before the batches are made" if self.progress < 0 else f"at {self.progress:.0%}"
        whom = "all" if self.kind is Kind.KILL_ALL else ", ".join(self.members)
        verb = "kill" if self.kind in (Kind.KILL_SEVERAL, Kind.KILL_ALL) else self.kind.value
        return f"{verb} {whom}{lasting} {when} + {self.delay_s:.2f} s"


def service_of(member: str) -> str:
    """`router-2` is a `router`."""
    return member.partition("-")[0]


def draw_round(seed: int, number: int, ground: Ground) -> list[Fault]:
    """The faults of one round, by their progress. A round depends on nothing but its arguments, so
    that one can be run again alone."""
    rng = random.Random(f"{seed}/{number}")
    faults = [draw(rng, ground) for _ in range(rng.randint(1, 3))]
    return sorted(faults, key=lambda fault: (fault.progress, fault.delay_s))


def draw(rng: random.Random, ground: Ground) -> Fault:
    weights = {kind: weight for kind, weight in _WEIGHTS.items() if kind in ground.kinds}
    kind = rng.choices(list(weights), list(weights.values()))[0]
    whom = _whom(rng, kind, ground)
    progress = rng.choice((BEFORE_CREATE, 0.0, 1.0, *(rng.random() for _ in range(9))))
    return Fault(
        kind,
        whom,
        progress,
        rng.uniform(0.0, MOST_DELAY_S),
        _lasting(rng, kind, whom[0], ground.leases),
        _shift(rng, kind),
    )


def _whom(rng: random.Random, kind: Kind, ground: Ground) -> tuple[str, ...]:
    members = ground.members
    if kind in STORE_KINDS:
        return (STORE,)
    match kind:
        case Kind.KILL_ALL:
            return members
        case Kind.KILL_SEVERAL:
            return tuple(sorted(rng.sample(members, rng.randint(2, min(4, len(members))))))
        case Kind.DISK_FULL:
            # Who writes objects.
            return (rng.choice(ground.of("router", "scheduler")),)
        case Kind.EXPIRY:
            return tuple(ground.of("scheduler"))
        case Kind.QUORUM:
            nodes = ground.of("etcd")
            return tuple(sorted(rng.sample(nodes, len(nodes) // 2 + 1)))
        case Kind.CLOCK:
            members = tuple(member for member in members if service_of(member) != "etcd")
    # A kind of service first: two routers are not twice as likely as one kvstore.
    service = rng.choice(sorted({service_of(member) for member in members}))
    return (rng.choice([member for member in members if service_of(member) == service]),)


def _lasting(rng: random.Random, kind: Kind, member: str, leases: Leases) -> float:
    match kind:
        case Kind.PAUSE | Kind.QUORUM:
            election = service_of(member) in ("scheduler", "etcd")
            return (leases.election_s if election else leases.member_s) + rng.uniform(0.5, 2.0)
        case Kind.EXPIRY:
            # A leader looks four times a second; the next one may come in the middle.
            return leases.election_s + rng.uniform(1.0, 3.0)
        case Kind.PARTITION | Kind.DISK_FULL | Kind.CLOCK:
            return rng.uniform(0.5, leases.election_s + 2.0)
    return rng.uniform(0.5, leases.election_s + 2.0) if kind in STORE_KINDS else 0.0


def _shift(rng: random.Random, kind: Kind) -> float:
    if kind is Kind.CLOCK:
        return rng.choice((HOUR_S, -HOUR_S))
    return HOUR_S if kind is Kind.EXPIRY else 0.0
