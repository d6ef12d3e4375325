"""Clients that ping while they and the server are idle are never told to calm down; a server that
stands still is noticed."""

from __future__ import annotations

import asyncio
import os
import signal
import sys

import grpc
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


SERVER = """
import asyncio
from libs.rpc.tests.raw import Stuck, echo, raw_service
from libs.testing.rpc import serving

async def main():
    async with serving(raw_service(unary={"Echo": echo, "Stuck": Stuck().unary})) as rpc:
        print(rpc.address, flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


async def test_a_call_to_a_server_that_stands_still_ends() -> None:
    """Its kernel goes on acknowledging what is sent."""
    server = await asyncio.create_subprocess_exec(
        sys.executable, "-c", SERVER, stdout=asyncio.subprocess.PIPE
    )
    try:
        assert server.stdout is not None
        address = (await server.stdout.readline()).decode().strip()
        async with connect(address, keepalive_s=0.2, ping_timeout_s=0.5) as channel:
            await unary(channel, "Echo")(b"connects")
            running = unary(channel, "Stuck")(b"")
            os.kill(server.pid, signal.SIGSTOP)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                async with asyncio.timeout(30):  # the default of a ping is a minute
                    await running
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    finally:
        server.kill()
        await server.wait()
