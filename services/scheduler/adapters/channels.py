"""Channels to members, one an address, kept while the process lives."""

from __future__ import annotations

import asyncio

import grpc

from libs.rpc import ClientTls, connect


class Channels:
    def __init__(self, tls: ClientTls | None = None) -> None:
        self._tls = tls
        self._channels: dict[str, grpc.aio.Channel] = {}

    def to(self, address: str) -> grpc.aio.Channel:
        channel = self._channels.get(address)
        if channel is None:
            channel = self._channels[address] = connect(address, self._tls)
        return channel

    async def close(self) -> None:
        channels, self._channels = list(self._channels.values()), {}
        await asyncio.gather(*(channel.close(None) for channel in channels))
