"""What is drawn from a seed: the same again, fit for its member, and all kinds in time."""

from __future__ import annotations

import random

from tests.robustness.cluster import LEASES
from tests.robustness.faults import Kind, draw, draw_round, service_of

MEMBERS = ("etcd", "kvstore", "leap", "scheduler-1", "scheduler-2", "modelserver-1", "router-1")


def test_a_round_is_a_function_of_its_seed_and_number() -> None:
    first = [draw_round(7, number, MEMBERS, LEASES) for number in range(20)]
    assert first == [draw_round(7, number, MEMBERS, LEASES) for number in range(20)]
    assert first != [draw_round(8, number, MEMBERS, LEASES) for number in range(20)]
    assert all(faults == sorted(faults, key=lambda f: f.progress) for faults in first)


def test_every_kind_is_drawn_and_every_kind_of_service_is_killed() -> None:
    rng = random.Random(1)
    drawn = [draw(rng, MEMBERS, LEASES) for _ in range(600)]
    assert {fault.kind for fault in drawn} == set(Kind)
    killed = {fault.service for fault in drawn if fault.kind is Kind.KILL}
    assert killed == {service_of(member) for member in MEMBERS}


def test_a_fault_fits_its_member() -> None:
    rng = random.Random(2)
    for fault in (draw(rng, MEMBERS, LEASES) for _ in range(600)):
        assert set(fault.members) <= set(MEMBERS)
        match fault.kind:
            case Kind.PAUSE:
                leads = service_of(fault.members[0]) in ("scheduler", "etcd")
                lease = LEASES.election_s if leads else LEASES.member_s
                assert fault.lasts_s > lease
            case Kind.KILL_ALL:
                assert fault.members == MEMBERS
            case Kind.KILL_SEVERAL:
                assert 2 <= len(set(fault.members)) <= 4
            case Kind.DISK_FULL:
                assert service_of(fault.members[0]) in ("router", "scheduler")
