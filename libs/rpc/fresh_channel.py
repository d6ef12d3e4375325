"""A gRPC channel whose credentials follow their files.

gRPC binds credentials to a channel for its life. So when they have changed, new calls go on a new
channel, while those that run stay on the old one, which is closed when the last of them has ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Self

import grpc

Open = Callable[[grpc.ChannelCredentials], grpc.aio.Channel]


class FreshChannel(grpc.aio.Channel):
    """credentials: asked at each call; another object than before means that they have changed."""

    def __init__(self, open_: Open, credentials: Callable[[], grpc.ChannelCredentials]) -> None:
        self._open = open_
        self._credentials = credentials
        self._lane = _Lane(credentials(), open_)
        self._old: set[_Lane] = set()
        self._closing: set[asyncio.Task[None]] = set()
        self._closed = False

    def unary_unary(self, *args: Any, **options: Any) -> Any:
        return self._method("unary_unary", args, options)

    def unary_stream(self, *args: Any, **options: Any) -> Any:
        return self._method("unary_stream", args, options)

    def stream_unary(self, *args: Any, **options: Any) -> Any:
        return self._method("stream_unary", args, options)

    def stream_stream(self, *args: Any, **options: Any) -> Any:
        return self._method("stream_stream", args, options)

    def get_state(self, try_to_connect: bool = False) -> grpc.ChannelConnectivity:
        return self._current().channel.get_state(try_to_connect)

    async def wait_for_state_change(self, last_observed_state: grpc.ChannelConnectivity) -> None:
        await self._current().channel.wait_for_state_change(last_observed_state)

    async def channel_ready(self) -> None:
        await self._current().channel.channel_ready()

    async def close(self, grace: float | None = None) -> None:
        self._closed = True
        lanes, self._old = {self._lane, *self._old}, set()
        await asyncio.gather(*(lane.channel.close(grace) for lane in lanes), *self._closing)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close(None)

    def _method(self, kind: str, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        made: tuple[_Lane, Any] | None = None

        def start(*call_args: Any, **call_options: Any) -> Any:
            nonlocal made
            lane = self._current()
            if made is None or made[0] is not lane:
                made = lane, getattr(lane.channel, kind)(*args, **options)
            call = made[1](*call_args, **call_options)
            lane.calls += 1
            call.add_done_callback(lambda _: self._ended(lane))
            return call

        return start

    def _current(self) -> _Lane:
        if self._closed:  # another lane would be nobody's to close
            return self._lane
        credentials = self._credentials()
        if credentials is not self._lane.credentials:
            old, self._lane = self._lane, _Lane(credentials, self._open)
            self._old.add(old)
            self._close_if_done(old)
        return self._lane

    def _ended(self, lane: _Lane) -> None:
        lane.calls -= 1
        self._close_if_done(lane)

    def _close_if_done(self, lane: _Lane) -> None:
        if lane in self._old and not lane.calls:
            self._old.remove(lane)
            task = asyncio.get_running_loop().create_task(lane.channel.close(None))
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)


class _Lane:
    """One channel and the calls that run on it."""

    def __init__(self, credentials: grpc.ChannelCredentials, open_: Open) -> None:
        self.credentials = credentials
        self.channel = open_(credentials)
        self.calls = 0
