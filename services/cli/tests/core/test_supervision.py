"""Starts, restarts and drains, on a clock that the test moves."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.cli.core.backoff import Backoff
from services.cli.core.supervision import (
    Effect,
    Failure,
    Kill,
    Phase,
    Spawn,
    Supervision,
    Terminate,
    Unit,
)

BACKOFF = Backoff(first_s=1.0, longest_s=8.0, healthy_s=10.0)
UNITS = (
    Unit("etcd", start_stage=0, stop_stage=2, grace_s=5.0),
    Unit("leap", start_stage=1, stop_stage=1, grace_s=5.0),
    Unit("router", start_stage=1, stop_stage=0, grace_s=5.0),
)
KILLED = -9


def fresh(units: Sequence[Unit] = UNITS) -> Supervision:
    return Supervision(units, BACKOFF)


def settled() -> Supervision:
    """All are ready since time 0."""
    core = fresh()
    core.begin()
    for name in ("etcd", "leap", "router"):
        core.ready(name, 0.0)
    assert core.settled
    return core


def test_a_stage_begins_once_every_unit_before_it_is_ready() -> None:
    core = fresh()
    assert core.begin() == [Spawn("etcd")]
    assert core.status("router").phase is Phase.WAITING
    assert core.ready("etcd", 1.0) == [Spawn("leap"), Spawn("router")]
    assert core.ready("leap", 2.0) == []
    assert not core.settled
    assert core.ready("router", 3.0) == []
    assert core.settled


def test_what_dies_is_started_again_after_the_first_wait() -> None:
    core = settled()
    assert core.exited("leap", KILLED, 100.0) == []
    assert core.status("leap").phase is Phase.BACKOFF
    assert core.next_due == 101.0
    assert core.tick(100.9) == []
    assert core.tick(101.0) == [Spawn("leap")]
    assert core.status("leap").restarts == 1
    assert core.next_due is None


def test_what_dies_again_and_again_is_waited_for_longer_and_longer() -> None:
    core, now, waits = settled(), 0.0, []
    for _ in range(5):
        core.exited("leap", 1, now)
        due = core.next_due
        assert due is not None
        waits.append(due - now)
        now = due
        assert core.tick(now) == [Spawn("leap")]
        core.ready("leap", now)
    assert waits == [1.0, 2.0, 4.0, 8.0, 8.0]


def test_a_healthy_life_forgets_what_was_before() -> None:
    core = settled()
    core.exited("leap", KILLED, 0.0)
    core.tick(1.0)
    core.ready("leap", 2.0)
    core.exited("leap", KILLED, 12.0)
    assert core.next_due == 13.0


def test_a_restarted_stage_does_not_start_the_later_ones_again() -> None:
    core = settled()
    core.exited("etcd", KILLED, 0.0)
    assert core.tick(1.0) == [Spawn("etcd")]
    assert core.ready("etcd", 2.0) == []


def test_a_unit_that_says_it_cannot_start_ends_the_whole_start() -> None:
    core = fresh()
    core.begin()
    core.ready("etcd", 0.0)
    assert core.exited("leap", 2, 1.0) == [Terminate("router")]
    assert core.failure == Failure("leap", 2)
    assert core.exited("router", 0, 2.0) == [Terminate("etcd")]
    core.exited("etcd", 0, 3.0)
    assert core.finished


def test_a_unit_that_a_signal_ends_during_the_start_is_started_again() -> None:
    core = fresh()
    core.begin()
    core.exited("etcd", KILLED, 0.0)
    assert core.failure is None
    assert core.tick(1.0) == [Spawn("etcd")]


def test_once_all_were_ready_an_exit_code_ends_nothing() -> None:
    core = settled()
    core.exited("router", 1, 50.0)
    assert core.failure is None
    assert core.tick(51.0) == [Spawn("router")]


def test_a_drain_goes_stage_by_stage() -> None:
    core = settled()
    assert core.stop(10.0) == [Terminate("router")]
    assert core.exited("router", 0, 11.0) == [Terminate("leap")]
    assert core.exited("leap", 0, 12.0) == [Terminate("etcd")]
    assert not core.finished
    assert core.exited("etcd", 0, 13.0) == []
    assert core.finished


def test_asking_twice_for_a_drain_changes_nothing() -> None:
    core = settled()
    core.stop(10.0)
    assert core.stop(11.0) == []
    assert core.next_due == 15.0


def test_who_outlives_its_grace_is_killed() -> None:
    core = settled()
    core.stop(10.0)
    assert core.tick(14.9) == []
    assert core.tick(15.0) == [Kill("router")]
    assert core.exited("router", KILLED, 15.1) == [Terminate("leap")]


def test_a_drain_during_the_start_starts_nothing_more() -> None:
    core = fresh()
    core.begin()
    assert core.stop(0.0) == [Terminate("etcd")]
    assert core.ready("etcd", 0.1) == []
    core.exited("etcd", 0, 1.0)
    assert core.finished


def test_a_unit_that_waits_for_its_restart_is_not_started_for_a_drain() -> None:
    core = settled()
    core.exited("router", KILLED, 0.0)
    assert core.stop(0.5) == [Terminate("leap")]
    assert core.tick(2.0) == []


def test_a_kill_ends_all_that_lives_at_once() -> None:
    core = settled()
    core.stop(10.0)
    core.exited("router", 0, 11.0)
    assert set(core.kill(12.0)) == {Kill("leap"), Kill("etcd")}
    core.exited("etcd", KILLED, 12.1)
    core.exited("leap", KILLED, 12.1)
    assert core.finished


def test_a_kill_without_a_drain_before_terminates_nobody() -> None:
    core = settled()
    assert set(core.kill(0.0)) == {Kill("etcd"), Kill("leap"), Kill("router")}


def test_two_units_of_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match="different names"):
        fresh((Unit("a", 0, 0), Unit("a", 1, 0)))


class World:
    """Processes that do what they are told, or die, in any order."""

    def __init__(self) -> None:
        self.core = fresh()
        self.now = 0.0
        self.alive: set[str] = set()
        self.terminated: set[str] = set()
        self.perform(self.core.begin())

    def perform(self, effects: Sequence[Effect]) -> None:
        for effect in effects:
            match effect:
                case Spawn(name):
                    assert name not in self.alive, f"{name} was started twice"
                    assert not self.core.stopping, f"{name} was started in a drain"
                    self.alive.add(name)
                case Terminate(name):
                    assert name in self.alive, f"{name} is not there to be terminated"
                    self.terminated.add(name)
                case Kill(name):
                    assert name in self.alive, f"{name} is not there to be killed"
                    self.dies(name, KILLED)
        self.core.check_integrity()

    def dies(self, name: str, code: int) -> None:
        if name in self.alive:
            self.alive.remove(name)
            self.perform(self.core.exited(name, code, self.now))

    def passes(self, seconds: float) -> None:
        self.now += seconds
        self.perform(self.core.tick(self.now))

    def ready(self, name: str) -> None:
        if name in self.alive:
            self.perform(self.core.ready(name, self.now))


NAMES = st.sampled_from([unit.name for unit in UNITS])
STEPS: st.SearchStrategy[Callable[[World], None]] = st.one_of(
    NAMES.map(lambda name: lambda world: world.ready(name)),
    st.tuples(NAMES, st.sampled_from([0, 1, KILLED])).map(
        lambda death: lambda world: world.dies(*death)
    ),
    st.floats(min_value=0.0, max_value=20.0).map(
        lambda seconds: lambda world: world.passes(seconds)
    ),
    st.just(lambda world: world.perform(world.core.stop(world.now))),
    st.just(lambda world: world.perform(world.core.kill(world.now))),
)


@settings(max_examples=80, deadline=None)
@given(st.lists(STEPS, max_size=40))
def test_whatever_happens_nothing_runs_twice_and_a_drain_ends_everything(
    steps: list[Callable[[World], None]],
) -> None:
    world = World()
    for step in steps:
        step(world)
    world.perform(world.core.stop(world.now))
    for _ in range(len(UNITS)):
        # Nobody ends by itself: each is killed once its grace is over.
        world.passes(5.0)
    assert world.core.finished
    assert not world.alive


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(NAMES, st.floats(min_value=0.0, max_value=30.0)), max_size=30))
def test_after_the_start_whatever_dies_comes_back(deaths: list[tuple[str, float]]) -> None:
    world = World()
    for name in ("etcd", "leap", "router"):
        world.ready(name)
    for name, seconds in deaths:
        world.passes(seconds)
        world.dies(name, 1)
    world.passes(BACKOFF.longest_s)
    assert world.alive == {unit.name for unit in UNITS}
    assert world.core.failure is None
