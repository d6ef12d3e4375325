"""One gRPC channel per address, opened at first use and kept."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import grpc

from libs.rpc import ClientTls, connect

Stub = TypeVar("Stub")


class Channels:
    """Used on one event loop. Channels to members that are long gone cost a few kilobytes each."""

    def __init__(self, tls: ClientTls | None = None) -> None:
        self._tls = tls
        self._open: dict[str, grpc.aio.Channel] = {}
        self._stubs: dict[tuple[object, str], tuple[grpc.aio.Channel, Any]] = {}

    def to(self, address: str) -> grpc.aio.Channel:
        channel = self._open.get(address)
        if channel is None:
            channel = self._open[address] = connect(address, self._tls)
        return channel

    def stub(self, kind: Callable[[grpc.aio.Channel], Stub], address: str) -> Stub:
        """The stub of that kind on the channel to `address`; made once, for it costs as much as a
        call."""
        channel = self.to(address)
        found = self._stubs.get((kind, address))
        if found is None or found[0] is not channel:
            found = self._stubs[kind, address] = channel, kind(channel)
        stub: Stub = found[1]
        return stub

    async def aclose(self) -> None:
        channels, self._open = self._open, {}
        for channel in channels.values():
            await channel.close(None)
