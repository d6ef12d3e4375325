"""Real gRPC servers on real sockets, for tests."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from libs.obs import Metrics
from libs.rpc import RpcServer, connect

Add = Callable[[Any, Any], None]  # a generated add_XServicer_to_server


def free_port() -> int:
    """A TCP port of loopback that was free a moment ago. Prefer binding port 0 where you can."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@asynccontextmanager
async def serving(
    *servicers: tuple[Add, Any], names: Sequence[str] = (), **options: Any
) -> AsyncIterator[RpcServer]:
    """A started, SERVING RpcServer on a free port with `servicers`, stopped at the end.

    servicers: pairs of the generated `add_XServicer_to_server` and a servicer.
    options:   passed to RpcServer; metrics are the server's own unless given.
    """
    options.setdefault("metrics", Metrics())
    rpc = RpcServer(names, **options)
    for add, servicer in servicers:
        for each in rpc.servers:
            add(servicer, each)
    await rpc.start()
    rpc.set_serving(True)
    try:
        yield rpc
    finally:
        await rpc.stop()


@asynccontextmanager
async def connected(rpc: RpcServer) -> AsyncIterator[Any]:
    """A channel to `rpc`, closed at the end."""
    async with connect(rpc.address) as channel:
        yield channel
