"""Many calls on one stream: each means what it means when it is called by itself."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest

from impala.common.v1 import tunnel_pb2, tunnel_pb2_grpc
from libs.errors import (
    DeadlineExceeded,
    ImpalaError,
    Internal,
    InvalidArgument,
    NotFound,
    ResourceExhausted,
    Unavailable,
)
from libs.rpc import ACCEPTED, RpcServer, call, connect, stream, was_accepted
from libs.rpc.tests.raw import SERVICE, Stuck, echo
from libs.rpc.tunnel import MAX_BYTES, Tunnel
from libs.testing.rpc import connected, free_port, serving
from libs.testing.waiting import eventually

MAX_MESSAGE = 4 << 20


async def count(request: bytes, context: Any) -> AsyncIterator[bytes]:
    """As many answers as the request says."""
    for at in range(int(request)):
        yield b"%d" % at


async def refuse(request: bytes, context: Any) -> bytes:
    raise InvalidArgument(f"{request.decode()} is wrong.", "WRONG", "request")


async def swell(request: bytes, context: Any) -> bytes:
    """An answer of so many bytes."""
    return bytes(int(request))


async def metadata_of(request: bytes, context: Any) -> bytes:
    return bytes(dict(context.invocation_metadata())["who"], "ascii")


def handlers(
    unary: Mapping[str, Any] | None = None, streamed: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    return {
        **{
            name: grpc.unary_unary_rpc_method_handler(each, bytes, bytes)
            for name, each in (unary or {}).items()
        },
        **{
            name: grpc.unary_stream_rpc_method_handler(each, bytes, bytes)
            for name, each in (streamed or {}).items()
        },
    }


@asynccontextmanager
async def tunnelled(
    methods: Mapping[str, Any], **options: Any
) -> AsyncIterator[tuple[RpcServer, Tunnel]]:
    def add(_: Any, server: Any) -> None:
        server.add_registered_method_handlers(SERVICE, dict(methods))

    async with (
        serving((add, None), tunnelled=True, **options) as rpc,
        connected(rpc) as channel,
    ):
        tunnel = Tunnel(channel)
        try:
            yield rpc, tunnel
        finally:
            await tunnel.aclose()


def one(tunnel: Any, name: str) -> Any:
    return tunnel.unary_unary(f"/{SERVICE}/{name}", bytes, bytes)


def many(tunnel: Any, name: str) -> Any:
    return tunnel.unary_stream(f"/{SERVICE}/{name}", bytes, bytes)


async def test_calls_that_run_at_the_same_time_get_each_its_own_answers() -> None:
    methods = handlers({"Echo": echo, "Refuse": refuse}, {"Count": count})
    chance = random.Random(5)

    async def ask(tunnel: Tunnel, at: int) -> tuple[str, object]:
        kind = chance.choice(("echo", "count", "refuse"))
        if kind == "echo":
            return kind, await call(one(tunnel, "Echo"), b"%d" % at, timeout_s=20) == b"%d" % at
        if kind == "count":
            answers = stream(many(tunnel, "Count"), b"%d" % (at % 7), timeout_s=20)
            return kind, [each async for each in answers] == [b"%d" % n for n in range(at % 7)]
        with pytest.raises(InvalidArgument) as caught:
            await call(one(tunnel, "Refuse"), b"%d" % at, timeout_s=20)
        return kind, (caught.value.message, caught.value.reason, caught.value.field) == (
            f"{at} is wrong.",
            "WRONG",
            "request",
        )

    async with tunnelled(methods) as (rpc, tunnel):
        answers = await asyncio.gather(*(ask(tunnel, at) for at in range(300)))
        assert rpc.running_calls == 0
    assert {kind for kind, _ in answers} == {"echo", "count", "refuse"}
    assert all(right is True for _, right in answers)


async def test_metadata_goes_with_its_call() -> None:
    async with tunnelled(handlers({"Who": metadata_of})) as (_, tunnel):
        asked = [
            call(one(tunnel, "Who"), b"", timeout_s=5, metadata=(("who", f"caller-{at}"),))
            for at in range(3)
        ]
        assert await asyncio.gather(*asked) == [b"caller-0", b"caller-1", b"caller-2"]


async def test_a_caller_who_leaves_cancels_its_call_and_no_other() -> None:
    stuck = Stuck()
    async with tunnelled(handlers({"Stuck": stuck.unary, "Echo": echo})) as (_, tunnel):
        waiting = asyncio.create_task(call(one(tunnel, "Stuck"), b"", timeout_s=60))
        await stuck.started.wait()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        async with asyncio.timeout(5):
            await stuck.cancelled.wait()
        assert await call(one(tunnel, "Echo"), b"x", timeout_s=5) == b"x"


async def test_a_stream_left_early_ends_its_handler() -> None:
    stuck = Stuck()
    async with tunnelled(handlers(streamed={"Endless": stuck.endless})) as (_, tunnel):
        async with contextlib.aclosing(
            stream(many(tunnel, "Endless"), b"", timeout_s=60)  # type: ignore[type-var]
        ) as answers:
            assert len(await anext(aiter(answers))) == 1 << 20
        async with asyncio.timeout(5):
            await stuck.cancelled.wait()


async def test_a_deadline_reaches_the_handler_and_is_told_to_the_caller() -> None:
    stuck = Stuck()
    async with tunnelled(handlers({"Stuck": stuck.unary})) as (_, tunnel):
        with pytest.raises(DeadlineExceeded):
            await call(one(tunnel, "Stuck"), b"", timeout_s=0.2)
        async with asyncio.timeout(5):
            await stuck.cancelled.wait()


async def test_a_broken_stream_ends_its_calls_and_the_next_call_opens_another() -> None:
    stuck = Stuck()
    accepted = asyncio.Event()

    async def accept(request: bytes, context: Any) -> AsyncIterator[bytes]:
        await context.send_initial_metadata(ACCEPTED)
        yield b"begun"
        await asyncio.get_running_loop().create_future()

    async def read(tunnel: Tunnel) -> None:
        async for _ in stream(many(tunnel, "Accept"), b"", timeout_s=60):
            accepted.set()

    methods = handlers({"Stuck": stuck.unary, "Echo": echo}, {"Accept": accept})
    port = free_port()
    channel = connect(f"127.0.0.1:{port}")
    tunnel = Tunnel(channel)

    def add(_: Any, server: Any) -> None:
        server.add_registered_method_handlers(SERVICE, methods)

    async with serving((add, None), port=port, tunnelled=True):
        refused = asyncio.create_task(call(one(tunnel, "Stuck"), b"", timeout_s=60))
        taken = asyncio.create_task(read(tunnel))
        await stuck.started.wait()
        await accepted.wait()
    for each, begun in ((refused, False), (taken, True)):
        with pytest.raises(ImpalaError) as caught:
            await each
        assert was_accepted(caught.value) is begun

    async with serving((add, None), port=port, tunnelled=True):

        async def is_answered() -> bool:
            with contextlib.suppress(Unavailable):  # until the channel has found the new server
                return bool(await call(one(tunnel, "Echo"), b"again", timeout_s=20) == b"again")
            return False

        await eventually(is_answered)
        await tunnel.aclose()
        await channel.close(None)


async def test_where_nobody_listens_a_call_is_told_so() -> None:
    async with connect(f"127.0.0.1:{free_port()}") as channel:
        tunnel = Tunnel(channel)
        with pytest.raises(Unavailable):
            await call(one(tunnel, "Echo"), b"", timeout_s=20)
        await tunnel.aclose()


async def test_a_channel_that_is_closed_under_its_calls_ends_them() -> None:
    stuck = Stuck()
    async with tunnelled(handlers({"Stuck": stuck.unary})) as (rpc, _):
        channel = connect(rpc.address)
        tunnel = Tunnel(channel)
        waiting = asyncio.create_task(call(one(tunnel, "Stuck"), b"", timeout_s=60))
        await stuck.started.wait()
        await channel.close(None)
        with pytest.raises(Unavailable) as caught:
            await waiting
        assert caught.value.reason == "CHANNEL_CLOSED"
        with pytest.raises(Unavailable):
            await call(one(tunnel, "Stuck"), b"", timeout_s=5)


async def test_a_method_that_is_not_there_is_not_found() -> None:
    async with tunnelled(handlers({"Echo": echo})) as (_, tunnel):
        with pytest.raises(NotFound, match="None is not tunnelled"):
            await call(one(tunnel, "None"), b"", timeout_s=5)


async def test_large_requests_go_by_themselves_and_too_large_answers_hurt_no_other() -> None:
    methods = handlers({"Echo": echo, "Swell": swell})
    async with tunnelled(methods, max_message_bytes=MAX_MESSAGE) as (_, tunnel):
        large = bytes(MAX_BYTES + 1)
        assert await call(one(tunnel, "Echo"), large, timeout_s=10) == large
        small = asyncio.gather(
            *(call(one(tunnel, "Echo"), b"%d" % at, timeout_s=10) for at in range(20))
        )
        with pytest.raises(ResourceExhausted, match="larger than"):
            await call(one(tunnel, "Swell"), b"%d" % MAX_MESSAGE, timeout_s=10)
        assert await small == [b"%d" % at for at in range(20)]
        whole = await call(one(tunnel, "Swell"), b"%d" % (MAX_MESSAGE - 2048), timeout_s=10)
        assert len(whole) == MAX_MESSAGE - 2048


async def test_large_answers_of_one_call_that_wait_together_hurt_no_other() -> None:
    async def large(request: bytes, context: Any) -> AsyncIterator[bytes]:
        for at in range(4):
            yield b"%d" % at + bytes(MAX_MESSAGE - 2048)

    methods = handlers({"Echo": echo}, {"Large": large})
    async with tunnelled(methods, max_message_bytes=MAX_MESSAGE) as (_, tunnel):
        await call(one(tunnel, "Echo"), b"x", timeout_s=10)
        other = asyncio.create_task(call(one(tunnel, "Echo"), b"x", timeout_s=10))
        answers = [each[:1] async for each in stream(many(tunnel, "Large"), b"", timeout_s=20)]
        assert answers == [b"0", b"1", b"2", b"3"]
        assert await other == b"x"


async def test_a_drain_refuses_new_calls_and_lets_running_ones_end() -> None:
    started, may_end = asyncio.Event(), asyncio.Event()

    async def slow(request: bytes, context: Any) -> bytes:
        started.set()
        await may_end.wait()
        return b"done"

    async with tunnelled(handlers({"Slow": slow, "Echo": echo})) as (rpc, tunnel):
        running = asyncio.create_task(call(one(tunnel, "Slow"), b"", timeout_s=20))
        await started.wait()
        draining = asyncio.create_task(rpc.drain(20.0))
        await asyncio.sleep(0)
        with pytest.raises(Unavailable) as caught:
            await call(one(tunnel, "Echo"), b"", timeout_s=10)
        assert caught.value.reason == "DRAINING"
        may_end.set()
        assert await running == b"done"
        await draining


async def test_an_idle_tunnel_does_not_hold_up_a_drain() -> None:
    async with tunnelled(handlers({"Echo": echo})) as (rpc, tunnel):
        await call(one(tunnel, "Echo"), b"", timeout_s=10)
        async with asyncio.timeout(5):
            await rpc.drain(60.0)


async def test_a_caller_who_does_not_read_is_not_answered_without_bound() -> None:
    stuck = Stuck()
    written = 0

    async def endless(request: bytes, context: Any) -> AsyncIterator[bytes]:
        nonlocal written
        async for each in stuck.endless(request, context):
            written += len(each)
            yield each

    async with tunnelled(handlers({"Echo": echo}, {"Endless": endless})) as (rpc, _):
        async with connect(rpc.address) as channel:
            raw = tunnel_pb2_grpc.TunnelStub(channel).Calls()
            start = tunnel_pb2.CallStart(id=1, method=f"/{SERVICE}/Endless")
            await raw.write(tunnel_pb2.CallsRequest(starts=[start, start]))
            await stuck.started.wait()
            before = -1
            while written > before:  # until it has stopped for a while
                before = written
                await asyncio.sleep(0.2)
            assert 4 << 20 <= written <= 32 << 20
            raw.cancel()
        async with asyncio.timeout(5):
            await stuck.cancelled.wait()


async def test_what_cannot_be_read_ends_its_call_alone() -> None:
    def torn(data: bytes) -> bytes:
        raise ValueError(data)

    methods = handlers({"Echo": echo})
    methods["Torn"] = grpc.unary_unary_rpc_method_handler(echo, torn, bytes)
    async with tunnelled(methods) as (_, tunnel):
        good = asyncio.create_task(call(one(tunnel, "Echo"), b"x", timeout_s=5))
        with pytest.raises(Internal, match="cannot be read"):
            await call(one(tunnel, "Torn"), b"", timeout_s=5)
        assert await good == b"x"


async def test_by_itself_and_tunnelled_a_method_answers_the_same() -> None:
    methods = handlers({"Echo": echo, "Refuse": refuse}, {"Count": count})
    async with tunnelled(methods) as (rpc, tunnel), connected(rpc) as channel:
        for way in (channel, tunnel):
            assert await call(one(way, "Echo"), b"x", timeout_s=5) == b"x"
            answers = stream(many(way, "Count"), b"3", timeout_s=5)
            assert [each async for each in answers] == [b"0", b"1", b"2"]
            with pytest.raises(InvalidArgument, match=r"7 is wrong\."):
                await call(one(way, "Refuse"), b"7", timeout_s=5)
