"""What the contracts have and nobody serves yet is what the list says, on a whole instance too."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import grpc

from impala.kvstore.v1 import kvstore_pb2
from impala.leap.v1 import leap_pb2
from impala.modelserver.v1 import modelserver_pb2
from impala.router.v1 import router_pb2
from impala.scheduler.v1 import scheduler_pb2
from libs.rpc import connect
from libs.rpc.status import REASON_KEY
from tests.contract.golden import unimplemented
from tests.e2e.stack import Stack

WITHIN_S = 20.0
OPEN_S = 5.0
"""How long a stream may stay silent: one that goes on is served."""

MODULES = {
    "router": router_pb2,
    "scheduler": scheduler_pb2,
    "modelserver": modelserver_pb2,
    "kvstore": kvstore_pb2,
    "leap": leap_pb2,
}
Method = tuple[str, str, str]


def methods() -> Iterator[tuple[Method, bool, bool]]:
    """(server, service, method), and whether requests and answers are streams."""
    for server, module in MODULES.items():
        for service in module.DESCRIPTOR.services_by_name.values():
            for each in service.methods:
                name = (server, service.name, each.name)
                yield name, each.client_streaming, each.server_streaming


async def answer(
    channel: grpc.aio.Channel, method: Method, many_in: bool, many_out: bool
) -> tuple[grpc.StatusCode, str, str]:
    """The status of a call with an empty request (none on a two-way stream), its reason for
    programs, and what it says."""
    path = f"/impala.{method[0]}.v1.{method[1]}/{method[2]}"
    empty = b""
    calls: Any = channel  # Its types say that bytes are no request; without a serializer they are.
    timeout = OPEN_S if many_out or many_in else WITHIN_S
    try:
        if many_in and many_out:
            # No message: one that is written to a stream which has ended cancels the call here.
            async for _ in calls.stream_stream(path)(iter(()), timeout=timeout):
                break
        elif many_in:
            await calls.stream_unary(path)(iter([empty]), timeout=timeout)
        elif many_out:
            async for _ in calls.unary_stream(path)(empty, timeout=timeout):
                break
        else:
            await calls.unary_unary(path)(empty, timeout=timeout)
    except grpc.aio.AioRpcError as error:
        trailers = dict(error.trailing_metadata() or ())
        return error.code(), str(trailers.get(REASON_KEY, "")), error.details() or ""
    return grpc.StatusCode.OK, "", ""


async def test_what_is_not_served_is_on_the_list_and_says_why(stack: Stack) -> None:
    channels = {name: connect(stack.address(name)) for name in MODULES}
    all_methods = list(methods())
    try:
        answers = await asyncio.gather(
            *(answer(channels[name[0]], name, *streams) for name, *streams in all_methods)
        )
    finally:
        await asyncio.gather(*(channel.close() for channel in channels.values()))
    pending = {
        (f"impala.{server}.v1.{service}.{method}", reason): why
        for ((server, service, method), *_), (code, reason, why) in zip(
            all_methods, answers, strict=True
        )
        if code is grpc.StatusCode.UNIMPLEMENTED
    }
    assert set(pending) == unimplemented()
    for name, why in pending.items():
        # What grpc itself says of a method that nobody wrote.
        assert not why.startswith("Method not"), f"{name}: {why}"
        assert len(why) > 20 and why.endswith("."), f"{name}: {why!r}"
