"""A service of raw bytes, so that the frame is tested without any of our protos."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

import grpc

SERVICE = "impala.test.Raw"


def raw_service(
    *,
    unary: Mapping[str, Callable[[bytes, Any], Awaitable[bytes]]] | None = None,
    streaming: Mapping[str, Callable[[bytes, Any], AsyncIterator[bytes]]] | None = None,
    uploading: Mapping[str, Callable[[AsyncIterator[bytes], Any], Awaitable[bytes]]] | None = None,
) -> tuple[Callable[[Any, Any], None], Any]:
    """A pair for `serving`: methods by name and kind."""
    handlers: dict[str, Any] = {}
    for name, handler in (unary or {}).items():
        handlers[name] = grpc.unary_unary_rpc_method_handler(handler)
    for name, source in (streaming or {}).items():
        handlers[name] = grpc.unary_stream_rpc_method_handler(source)
    for name, sink in (uploading or {}).items():
        handlers[name] = grpc.stream_unary_rpc_method_handler(sink)
    generic = grpc.method_handlers_generic_handler(SERVICE, handlers)
    return (lambda _, server: server.add_generic_rpc_handlers((generic,))), None


def unary(channel: grpc.aio.Channel, name: str) -> Any:
    return channel.unary_unary(f"/{SERVICE}/{name}", None, None)


def streaming(channel: grpc.aio.Channel, name: str) -> Any:
    return channel.unary_stream(f"/{SERVICE}/{name}", None, None)


def uploading(channel: grpc.aio.Channel, name: str) -> Any:
    return channel.stream_unary(f"/{SERVICE}/{name}", None, None)


async def echo(request: bytes, _: Any) -> bytes:
    return request


class Stuck:
    """A handler that waits for ever and tells when it started and how it ended."""

    def __init__(self) -> None:
        self.started = asyncio.Event()
        self.cancelled = asyncio.Event()

    async def unary(self, request: bytes, context: Any) -> bytes:
        self.started.set()
        try:
            return await asyncio.get_running_loop().create_future()  # type: ignore[no-any-return]
        except asyncio.CancelledError:
            self.cancelled.set()
            raise

    async def endless(self, request: bytes, context: Any) -> AsyncIterator[bytes]:
        """Yields as fast as the client reads; ended at `yield`, not in an await of its own."""
        self.started.set()
        try:
            while True:
                yield bytes(1 << 20)
        finally:
            self.cancelled.set()
