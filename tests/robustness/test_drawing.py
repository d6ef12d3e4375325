"""What is drawn from a seed: the same again, fit for its member, and all kinds in time."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from tests.robustness.cluster import LEASES
from tests.robustness.faults import (
    ALWAYS,
    HOUR_S,
    STORE,
    STORE_KINDS,
    Ground,
    Kind,
    draw,
    draw_round,
    service_of,
)

SERVICES = ("kvstore", "leap", "scheduler-1", "scheduler-2", "modelserver-1", "router-1")
GROUND = Ground(("etcd-1", "etcd-2", "etcd-3", *SERVICES), LEASES, frozenset(Kind))
SMALL = Ground(("etcd", *SERVICES), LEASES)


@pytest.mark.parametrize("ground", [GROUND, SMALL])
def test_a_round_is_a_function_of_its_seed_and_number(ground: Ground) -> None:
    first = [draw_round(7, number, ground) for number in range(20)]
    assert first == [draw_round(7, number, replace(ground)) for number in range(20)]
    assert first != [draw_round(8, number, ground) for number in range(20)]
    assert all(faults == sorted(faults, key=lambda f: f.progress) for faults in first)


@pytest.mark.parametrize("ground", [GROUND, SMALL])
def test_every_kind_is_drawn_and_every_kind_of_service_is_killed(ground: Ground) -> None:
    rng = random.Random(1)
    drawn = [draw(rng, ground) for _ in range(1000)]
    assert {fault.kind for fault in drawn} == ground.kinds
    killed = {fault.service for fault in drawn if fault.kind is Kind.KILL}
    assert killed == {service_of(member) for member in ground.members}


def test_a_small_cluster_has_none_of_the_faults_of_what_it_lacks() -> None:
    assert not SMALL.kinds & STORE_KINDS
    assert SMALL.kinds == ALWAYS


def test_a_fault_fits_its_member() -> None:
    rng = random.Random(2)
    for fault in (draw(rng, GROUND) for _ in range(1000)):
        assert set(fault.members) <= {*GROUND.members, STORE}
        services = [service_of(member) for member in fault.members]
        match fault.kind:
            case Kind.PAUSE:
                leads = services[0] in ("scheduler", "etcd")
                lease = LEASES.election_s if leads else LEASES.member_s
                assert fault.lasts_s > lease
            case Kind.KILL_ALL:
                assert fault.members == GROUND.members
            case Kind.KILL_SEVERAL:
                assert 2 <= len(set(fault.members)) <= 4
            case Kind.DISK_FULL:
                assert services[0] in ("router", "scheduler")
            case Kind.QUORUM:
                assert services == ["etcd"] * 2
                assert len(set(fault.members)) == 2
                assert fault.lasts_s > LEASES.election_s
            case Kind.CLOCK:
                assert services != ["etcd"]
                assert abs(fault.shift_s) == HOUR_S
            case Kind.EXPIRY:
                assert services == ["scheduler"] * 2
                assert fault.shift_s == HOUR_S
        assert (fault.members == (STORE,)) is (fault.kind in STORE_KINDS)
        if fault.kind in STORE_KINDS | {Kind.CLOCK, Kind.EXPIRY}:
            assert fault.lasts_s > 0
