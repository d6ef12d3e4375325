"""One gRPC channel per address, opened at first use and kept."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import grpc

from libs.rpc import ClientTls, connect
from libs.rpc.tunnel import Tunnel

Stub = TypeVar("Stub")


class Channels:
    """Used on one event loop. Channels to members that are long gone cost a few kilobytes each."""

    def __init__(self, tls: ClientTls | None = None) -> None:
        self._tls = tls
        self._open: dict[str, grpc.aio.Channel] = {}
        self._tunnels: dict[str, tuple[grpc.aio.Channel, Tunnel]] = {}
        self._stubs: dict[tuple[object, str, bool], tuple[grpc.aio.Channel, Any]] = {}

    def to(self, address: str) -> grpc.aio.Channel:
        channel = self._open.get(address)
        if channel is None:
            channel = self._open[address] = connect(address, self._tls)
        return channel

    def stub(
        self, kind: Callable[[grpc.aio.Channel], Stub], address: str, *, tunnelled: bool = False
    ) -> Stub:
        """The stub of that kind on the channel to `address`; made once, for it costs as much as a
        call. tunnelled: its calls share a stream."""
        channel = self.to(address)
        found = self._stubs.get((kind, address, tunnelled))
        if found is None or found[0] is not channel:
            way: Any = self._tunnel(address, channel) if tunnelled else channel
            found = self._stubs[kind, address, tunnelled] = channel, kind(way)
        stub: Stub = found[1]
        return stub

    def _tunnel(self, address: str, channel: grpc.aio.Channel) -> Tunnel:
        found = self._tunnels.get(address)
        if found is None or found[0] is not channel:
            found = self._tunnels[address] = channel, Tunnel(channel)
        return found[1]

    async def aclose(self) -> None:
        tunnels, self._tunnels = self._tunnels, {}
        for _, tunnel in tunnels.values():
            await tunnel.aclose()
        channels, self._open = self._open, {}
        for channel in channels.values():
            await channel.close(None)
