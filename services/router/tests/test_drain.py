"""Going away politely: no new work, the running answer whole, leaders told."""

from __future__ import annotations

import asyncio

import pytest_asyncio

from libs.cluster.members import Members
from services.router.testing import Gate
from services.router.tests.conftest import MODEL, Stage


@pytest_asyncio.fixture(loop_scope="session")
async def stage(fresh: Stage) -> Stage:
    """A drained router serves no other test."""
    return fresh


BODY = {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}]}


async def test_a_running_answer_is_finished_and_the_member_leaves_first(stage: Stage) -> None:
    stage.server.gate = Gate(open_after=2)
    asking = asyncio.create_task(stage.http().post("/v1/chat/completions", json=BODY))
    await stage.server.wait_until(lambda server: len(server.running) == 1)
    async with Members(stage.client, "router") as routers:
        assert list(routers.current()) == ["router-1"]
        draining = asyncio.create_task(stage.router.drain())
        async with asyncio.timeout(5):
            await routers.wait_until(lambda: not routers.current())
    stage.server.gate.open()
    assert (await asking).status_code == 200
    await draining


async def test_what_outlives_the_grace_is_cut_and_freed(stage: Stage) -> None:
    stage.server.gate = Gate(open_after=2)
    asking = asyncio.create_task(stage.http().post("/v1/chat/completions", json=BODY))
    await stage.server.wait_until(lambda server: len(server.running) == 1)
    async with asyncio.timeout(10):
        await stage.router.drain()
    await stage.server.wait_until(lambda server: not server.running)
    await asyncio.gather(asking, return_exceptions=True)
    assert len(stage.server.cancelled) == 1
