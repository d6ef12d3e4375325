"""Clients that ping while they and the server are idle are never told to calm down."""

from __future__ import annotations

import asyncio

import pytest

from libs.rpc import connect
from libs.rpc.tests.raw import Stuck, echo, raw_service, unary
from libs.testing.rpc import serving

PING_S = 1.0
"""A tenth of the default; the server allows a ping a second."""
IDLE_S = 30.0


@pytest.mark.slow
async def test_pings_through_an_idle_time_and_a_long_call_break_nothing() -> None:
    """gRPC's own servers allow one ping in five minutes, and close the connection (GOAWAY,
    ENHANCE_YOUR_CALM) at the third that comes sooner."""
    stuck = Stuck()
    service = raw_service(unary={"Echo": echo, "Stuck": stuck.unary})
    async with serving(service) as rpc, connect(rpc.address, keepalive_s=PING_S) as channel:
        await unary(channel, "Echo")(b"before")
        running = unary(channel, "Stuck")(b"")
        await stuck.started.wait()
        lasted = asyncio.create_task(asyncio.sleep(IDLE_S))
        await asyncio.wait([lasted, asyncio.ensure_future(running)], return_when="FIRST_COMPLETED")
        assert lasted.done(), "the long call was cut"
        running.cancel()
        async with connect(rpc.address, keepalive_s=PING_S) as other:
            await unary(other, "Echo")(b"idle")
            await asyncio.sleep(IDLE_S / 2)  # the idle time is what is tried
            assert await unary(other, "Echo")(b"after", timeout=10) == b"after"
        assert await unary(channel, "Echo")(b"after", timeout=10) == b"after"
