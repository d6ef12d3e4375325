"""One gRPC channel per address, opened at first use and kept."""

from __future__ import annotations

import grpc

from libs.rpc import ClientTls, connect


class Channels:
    """Used on one event loop. Channels to members that are long gone cost a few kilobytes each."""

    def __init__(self, tls: ClientTls | None = None) -> None:
        self._tls = tls
        self._open: dict[str, grpc.aio.Channel] = {}

    def to(self, address: str) -> grpc.aio.Channel:
        channel = self._open.get(address)
        if channel is None:
            channel = self._open[address] = connect(address, self._tls)
        return channel

    async def aclose(self) -> None:
        channels, self._open = self._open, {}
        for channel in channels.values():
            await channel.close(None)
