"""A leader that may have been succeeded gives nothing away, and keeps the queue of its runs."""

from __future__ import annotations

import asyncio

import pytest

from libs.clock import ManualClock
from libs.obs import Metrics
from services.scheduler.app.desk import GrantDesk, Granted
from services.scheduler.core.errors import NotLeader
from services.scheduler.core.server import SERVING, Server
from services.scheduler.core.step import Step


class Leadership:
    held = True


def desk_of(leadership: Leadership, places: int) -> GrantDesk:
    clock = ManualClock()
    desk = GrantDesk("f", 1, clock, metrics=Metrics(), may_grant=lambda: leadership.held)
    desk.expect(["a"])
    desk.server_seen(
        Server(
            member_id="a",
            address="a:1",
            incarnation="a-1",
            phase=SERVING,
            max_steps=places,
            block_tokens=32,
            total_blocks=1000,
        )
    )
    return desk


def step(name: str, run_id: str = "") -> Step:
    return Step(step_id=name, arrived=0.0, prompt_tokens=64, run_id=run_id)


async def asking(desk: GrantDesk, step: Step) -> asyncio.Task[Granted]:
    task = asyncio.create_task(desk.acquire(step))
    await asyncio.sleep(0)
    return task


async def test_in_doubt_a_step_of_nobodys_run_is_refused_at_once() -> None:
    leadership = Leadership()
    desk = desk_of(leadership, places=4)
    leadership.held = False
    with pytest.raises(NotLeader):
        await desk.acquire(step("s"))
    leadership.held = True
    assert (await desk.acquire(step("s"))).grant.member_id == "a"


async def test_in_doubt_a_line_of_a_run_waits_and_is_granted_when_the_doubt_is_over() -> None:
    leadership = Leadership()
    desk = desk_of(leadership, places=4)
    leadership.held = False
    line = await asking(desk, step("line", run_id="r"))
    desk.tick()
    await asyncio.sleep(0)
    assert not line.done()
    leadership.held = True
    desk.tick()
    assert (await line).grant.member_id == "a"


async def test_who_waits_when_the_doubt_begins_is_told_within_a_tick() -> None:
    leadership = Leadership()
    desk = desk_of(leadership, places=1)
    granted = [await asking(desk, step(f"{number}", run_id="r")) for number in range(8)]
    chat, line = await asking(desk, step("chat")), await asking(desk, step("line", run_id="r"))
    assert not chat.done() and not line.done(), "all places are taken"
    leadership.held = False
    desk.tick()
    with pytest.raises(NotLeader):
        await chat
    assert not line.done()
    for task in (*granted, line):
        task.cancel()
