"""Clocks: the real one moves by itself, the manual one only when told."""

import asyncio

import pytest

from libs.clock import Clock, ManualClock, SteadyClock, SystemClock


async def test_a_sleeper_wakes_when_its_time_has_come_and_not_before() -> None:
    clock = ManualClock()
    sleeper = asyncio.create_task(clock.sleep(10))
    await clock.wait_for_sleepers(1)
    clock.advance(9.5)
    assert clock.sleepers == 1
    clock.advance(0.5)
    await sleeper
    assert clock.sleepers == 0
    assert clock.now() == 10


async def test_sleepers_wake_in_the_order_they_are_due() -> None:
    clock = ManualClock()
    woken: list[str] = []

    async def nap(name: str, seconds: float) -> None:
        await clock.sleep(seconds)
        woken.append(name)

    async with asyncio.TaskGroup() as group:
        for name, seconds in [("late", 3.0), ("first", 1.0), ("tie", 3.0)]:
            group.create_task(nap(name, seconds))
        await clock.wait_for_sleepers(3)
        clock.advance(5)
    assert woken == ["first", "late", "tie"]


async def test_a_cancelled_sleeper_is_forgotten() -> None:
    clock = ManualClock()
    sleeper = asyncio.create_task(clock.sleep(1))
    await clock.wait_for_sleepers(1)
    sleeper.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sleeper
    assert clock.sleepers == 0
    clock.advance(2)
    assert clock.now() == 2


async def test_sleeping_for_nothing_never_waits_for_the_test() -> None:
    clock = ManualClock()
    await clock.sleep(0)
    await clock.sleep(-1)
    assert clock.now() == 0


def test_wall_time_follows_monotonic_time_and_can_jump_alone() -> None:
    clock = ManualClock(now=5, wall=1000)
    clock.advance(2)
    assert (clock.now(), clock.time()) == (7, 1002)
    clock.jump_wall(-600)
    assert (clock.now(), clock.time()) == (7, 402)


def test_time_does_not_go_backwards() -> None:
    with pytest.raises(ValueError, match="backwards"):
        ManualClock().advance(-1)


async def test_the_system_clock_sleeps_at_least_as_long_as_asked() -> None:
    clock: Clock = SystemClock()
    before = clock.now()
    await clock.sleep(0.01)
    assert clock.now() - before >= 0.01
    assert clock.time() > 1_600_000_000


def test_a_steady_clock_goes_on_where_the_wall_jumps() -> None:
    wall = ManualClock(now=5.0, wall=1000.0)
    steady = SteadyClock(wall)
    wall.jump_wall(3600.0)
    wall.advance(2.0)
    assert (steady.time(), steady.now()) == (1002.0, 7.0)
    assert wall.time() == 4602.0
