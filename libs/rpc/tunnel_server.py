"""The server's end of impala.common.v1.Tunnel: many small calls on one stream.

A tunnelled call runs the handler that gRPC would run for it, frame included (`CallInterceptor`), in
a task of its own with a context that answers on the stream.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Mapping
from typing import Any, NoReturn

import grpc

from impala.common.v1 import tunnel_pb2, tunnel_pb2_grpc
from libs.clock import Clock

_ROOM_BYTES = 4 << 20
"""Answers that wait to be sent, beyond which calls wait to write more."""
_MESSAGE_BYTES = 1 << 20
"""Of answers put in one message of the stream, if there is more than one."""

Pairs = Iterable[tuple[str, str | bytes]]


class TunnelApi(tunnel_pb2_grpc.TunnelServicer):
    """wrap: what the server puts around each handler. The methods come as to a grpc.aio server:
    `add_KvStoreServicer_to_server(servicer, tunnel)`."""

    def __init__(self, wrap: Callable[[str, Any], Any], clock: Clock, max_bytes: int) -> None:
        self._wrap = wrap
        self._clock = clock
        self._max_bytes = max_bytes
        self._bare: dict[str, Any] = {}
        self._wrapped: dict[str, Any] = {}

    def add_generic_rpc_handlers(self, handlers: object) -> None:
        """What generated code calls too; it names no methods."""

    def add_registered_method_handlers(self, service: str, handlers: Mapping[str, Any]) -> None:
        for name, handler in handlers.items():
            if not handler.request_streaming:
                self._bare[f"/{service}/{name}"] = handler

    def _handler(self, method: str) -> Any:
        """None for a method that is not here. Wrapped when it is first called: a servicer may leave
        methods out."""
        if method not in self._wrapped and method in self._bare:
            self._wrapped[method] = self._wrap(method, self._bare[method])
        return self._wrapped.get(method)

    async def Calls(
        self, request_iterator: AsyncIterable[tunnel_pb2.CallsRequest], context: object
    ) -> AsyncIterator[tunnel_pb2.CallsResponse]:
        outgoing = _Outgoing()
        running = _Running(self._handler, outgoing, self._clock, self._max_bytes)
        reading = asyncio.create_task(running.read(request_iterator))
        try:
            while (news := await outgoing.take()) is not None:
                yield tunnel_pb2.CallsResponse(news=news)
            await reading
        finally:
            reading.cancel()
            running.cancel_all()
            await asyncio.gather(reading, *running.tasks.values(), return_exceptions=True)


class _Running:
    """The calls of one stream."""

    def __init__(
        self,
        handler: Callable[[str], Any],
        outgoing: _Outgoing,
        clock: Clock,
        max_bytes: int,
    ) -> None:
        self.tasks: dict[int, asyncio.Task[None]] = {}
        self._handler = handler
        self._outgoing = outgoing
        self._clock = clock
        self._max_bytes = max_bytes

    async def read(self, requests: AsyncIterable[tunnel_pb2.CallsRequest]) -> None:
        """Until the caller closes its side; then to the end of what runs."""
        try:
            async for request in requests:
                for start in request.starts:
                    self._begin(start)
                for call_id in request.cancels:
                    if call_id in self.tasks:
                        self.tasks[call_id].cancel()
            if self.tasks:
                await asyncio.wait(self.tasks.values())
        finally:
            self._outgoing.close()

    def cancel_all(self) -> None:
        for task in self.tasks.values():
            task.cancel()

    def _begin(self, start: tunnel_pb2.CallStart) -> None:
        if start.id in self.tasks:
            return  # one answer an id: the first
        task = asyncio.create_task(self._run(start))
        self.tasks[start.id] = task
        task.add_done_callback(lambda _: self._ended(start.id))

    def _ended(self, call_id: int) -> None:
        self.tasks.pop(call_id, None)

    async def _run(self, start: tunnel_pb2.CallStart) -> None:
        context = _CallContext(start, self._outgoing, self._clock, self._max_bytes)
        timer = None
        task = asyncio.current_task()
        if start.timeout_ms and task is not None:
            timer = asyncio.get_running_loop().call_later(start.timeout_ms / 1000, task.cancel)
        try:
            await self._answer(start, context)
        except asyncio.CancelledError:
            late = (context.time_remaining() or 1.0) <= 0.0
            code = grpc.StatusCode.DEADLINE_EXCEEDED if late else grpc.StatusCode.CANCELLED
            context.end_with(code, code.name)
        except grpc.aio.AbortError:
            pass  # the context has told
        except Exception as error:  # noqa: BLE001  # every call ends, and the others go on
            context.end_with(grpc.StatusCode.INTERNAL, f"{type(error).__name__} in the frame.")
        finally:
            if timer is not None:
                timer.cancel()

    async def _answer(self, start: tunnel_pb2.CallStart, context: _CallContext) -> None:
        handler = self._handler(start.method)
        if handler is None:
            context.end_with(grpc.StatusCode.NOT_FOUND, f"{start.method} is not tunnelled.")
            return
        try:
            request = handler.request_deserializer(start.request)
        except Exception:  # noqa: BLE001  # as gRPC does with what it cannot read
            context.end_with(grpc.StatusCode.INTERNAL, "The request cannot be read.")
            return
        context.serialize = handler.response_serializer
        if handler.response_streaming:
            await handler.unary_stream(request, context)
        else:
            await context.write(await handler.unary_unary(request, context))
        context.end()


class _CallContext:
    """What a handler sees of its call: the part of grpc.aio.ServicerContext that ours use."""

    def __init__(
        self, start: tunnel_pb2.CallStart, outgoing: _Outgoing, clock: Clock, max_bytes: int
    ) -> None:
        self.serialize: Callable[[Any], bytes] = bytes
        self._id = start.id
        self._outgoing = outgoing
        self._clock = clock
        self._max_bytes = max_bytes
        self._metadata = tuple((pair.key, pair.value) for pair in start.metadata)
        self._ends_at = clock.now() + start.timeout_ms / 1000 if start.timeout_ms else None
        self._code: grpc.StatusCode | None = None
        self._ended = False

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        return self._metadata

    def time_remaining(self) -> float | None:
        return None if self._ends_at is None else self._ends_at - self._clock.now()

    def code(self) -> grpc.StatusCode | None:
        return self._code

    async def send_initial_metadata(self, metadata: Pairs) -> None:
        self._outgoing.of(self._id).initial.extend(_pairs(metadata))

    async def write(self, message: Any) -> None:
        data = self.serialize(message)
        if len(data) > self._max_bytes:
            size = f"An answer of {len(data)} bytes is larger than {self._max_bytes}."
            await self.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, size)
        await self._outgoing.room()
        self._outgoing.of(self._id, len(data)).messages.append(data)

    async def abort(
        self, code: grpc.StatusCode, details: str = "", trailing_metadata: Pairs = ()
    ) -> NoReturn:
        self._code = code
        self.end_with(code, details, trailing_metadata)
        raise grpc.aio.AbortError(details)

    def end(self) -> None:
        self._end(tunnel_pb2.CallEnd())

    def end_with(self, code: grpc.StatusCode, details: str, trailing_metadata: Pairs = ()) -> None:
        number: int = code.value[0]
        self._end(
            tunnel_pb2.CallEnd(code=number, details=details, trailers=_pairs(trailing_metadata))
        )

    def _end(self, end: tunnel_pb2.CallEnd) -> None:
        """Only the first counts."""
        if not self._ended:
            self._ended = True
            self._outgoing.of(self._id, len(end.details)).end.CopyFrom(end)


class _Waiting:
    """News of one call that go out together."""

    def __init__(self, call_id: int) -> None:
        self.news = tunnel_pb2.CallNews(id=call_id)
        self.size = 0


class _Outgoing:
    """The news of all calls until they are sent."""

    def __init__(self) -> None:
        self._queue: deque[_Waiting] = deque()
        self._newest: dict[int, _Waiting] = {}
        """Of each call, what may still be added to."""
        self._bytes = 0
        self._closed = False
        self._some = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()

    def of(self, call_id: int, size: int = 0) -> tunnel_pb2.CallNews:
        """What goes out next of a call, to be added to now. size: of what is added, bytes."""
        waiting = self._newest.get(call_id)
        # Several large answers in one message of the stream could be more than it may carry.
        if waiting is None or (waiting.size and waiting.size + size > _MESSAGE_BYTES):
            waiting = self._newest[call_id] = _Waiting(call_id)
            self._queue.append(waiting)
        waiting.size += size
        self._bytes += size
        if self._bytes >= _ROOM_BYTES:
            self._room.clear()
        self._some.set()
        return waiting.news

    async def room(self) -> None:
        """Returns when a caller who reads slowly has read enough."""
        while not self._room.is_set():  # another that waited may have taken it
            await self._room.wait()

    def close(self) -> None:
        self._closed = True
        self._some.set()

    async def take(self) -> list[tunnel_pb2.CallNews] | None:
        """What there is, waited for; None after `close`, when nothing is left."""
        while not self._queue:
            if self._closed:
                return None
            self._some.clear()
            await self._some.wait()
        taken: list[tunnel_pb2.CallNews] = []
        size = 0
        while self._queue:
            waiting = self._queue[0]
            if taken and size + waiting.size > _MESSAGE_BYTES:
                break
            self._queue.popleft()
            call_id = waiting.news.id
            if self._newest[call_id] is waiting:
                del self._newest[call_id]
            taken.append(waiting.news)
            size += waiting.size
        self._bytes -= size
        if self._bytes < _ROOM_BYTES:
            self._room.set()
        return taken


def _pairs(metadata: Pairs) -> list[tunnel_pb2.Pair]:
    return [
        tunnel_pb2.Pair(key=key, value=value if isinstance(value, str) else value.decode("ascii"))
        for key, value in metadata
    ]
