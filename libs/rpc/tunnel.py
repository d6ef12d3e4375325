"""The client's end of impala.common.v1.Tunnel: a channel whose calls share one stream.

    tunnel = Tunnel(connect("host:port"))
    stub = SchedulerStub(tunnel)
    answer = await call(stub.Acquire, request, timeout_s=1.0)

For stubs it is a channel; `call` and `stream` of libs.rpc treat its calls as any other. The stream
opens with the first call and again with the first one after it broke; a break ends all calls that
run, as the connection's would. Requests above `MAX_BYTES` go by themselves, on the channel.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import grpc

from impala.common.v1 import tunnel_pb2, tunnel_pb2_grpc
from libs.rpc.status import REASON_KEY

MAX_BYTES = 256 << 10
"""A large request would hold up the small ones behind it."""
_START_BYTES = 1 << 20
"""Of requests in one message of the stream, about."""
_CODES = {code.value[0]: code for code in grpc.StatusCode}

Metadata = Sequence[tuple[str, str]]


class Tunnel:
    """Used on one event loop. `channel` stays its caller's, who closes it after `aclose`."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._channel = channel
        self._stub = tunnel_pb2_grpc.TunnelStub(channel)
        self._stream: _Stream | None = None

    def unary_unary(
        self, method: str, request_serializer: Any, response_deserializer: Any, *_: Any, **__: Any
    ) -> Callable[..., Any]:
        direct = self._channel.unary_unary(method, request_serializer, response_deserializer)
        return self._method(method, request_serializer, response_deserializer, direct, _one)

    def unary_stream(
        self, method: str, request_serializer: Any, response_deserializer: Any, *_: Any, **__: Any
    ) -> Callable[..., Any]:
        direct = self._channel.unary_stream(method, request_serializer, response_deserializer)
        return self._method(method, request_serializer, response_deserializer, direct, _Messages)

    def stream_unary(self, *args: Any, **options: Any) -> Any:
        return self._channel.stream_unary(*args, **options)

    def stream_stream(self, *args: Any, **options: Any) -> Any:
        return self._channel.stream_stream(*args, **options)

    async def aclose(self) -> None:
        if self._stream is not None:
            await self._stream.aclose()

    def _method(
        self,
        method: str,
        serialize: Callable[[Any], bytes],
        deserialize: Callable[[bytes], Any],
        direct: Any,
        shape: Callable[[_Call], Any],
    ) -> Callable[..., Any]:
        def start(
            request: Any,
            timeout: float | None = None,  # as a stub's methods take it
            metadata: Metadata = (),
            wait_for_ready: bool = False,
        ) -> Any:
            data = serialize(request)
            if len(data) > MAX_BYTES:
                return direct(
                    request, timeout=timeout, metadata=metadata, wait_for_ready=wait_for_ready
                )
            return shape(self._open().start(method, data, deserialize, timeout, metadata))

        return start

    def _open(self) -> _Stream:
        if self._stream is None or self._stream.broken:
            self._stream = _Stream(self._stub)
        return self._stream


class _Stream:
    """One opened stream and the calls on it."""

    def __init__(self, stub: tunnel_pb2_grpc.TunnelAsyncStub) -> None:
        self.broken = False
        self._ids = itertools.count(1)
        self._calls: dict[int, _Call] = {}
        self._requests = _Requests()
        self._pump = asyncio.create_task(self._run(stub))

    def start(
        self,
        method: str,
        request: bytes,
        deserialize: Callable[[bytes], Any],
        timeout_s: float | None,
        metadata: Metadata,
    ) -> _Call:
        call_id = next(self._ids)
        call = self._calls[call_id] = _Call(self, call_id, deserialize, timeout_s)
        start = tunnel_pb2.CallStart(
            id=call_id,
            method=method,
            request=request,
            timeout_ms=0 if timeout_s is None else max(1, round(timeout_s * 1000)),
        )
        for key, value in metadata:
            start.metadata.add(key=key, value=value)
        self._requests.start(start)
        return call

    def drop(self, call_id: int) -> None:
        """Nobody waits for it any more; no effect on a call that has ended."""
        if self._calls.pop(call_id, None) is not None:
            self._requests.cancel(call_id)

    async def aclose(self) -> None:
        self._pump.cancel()
        await asyncio.gather(self._pump, return_exceptions=True)

    async def _run(self, stub: tunnel_pb2_grpc.TunnelAsyncStub) -> None:
        running: Any = None
        code, details, reason = grpc.StatusCode.UNAVAILABLE, "The stream of calls ended.", ""
        try:
            running = stub.Calls(self._requests)
            async for response in running:
                for news in response.news:
                    self._take(news)
        except grpc.aio.AioRpcError as failure:
            code, details = failure.code(), failure.details() or code.name
        except grpc.aio.UsageError:
            details, reason = "The connection is closed.", "CHANNEL_CLOSED"
        except asyncio.CancelledError:
            # By `aclose`, or because the channel was closed under the stream.
            details, reason = "The connection was closed during the call.", "CHANNEL_CLOSED"
            raise
        finally:
            self.broken = True
            if running is not None:
                running.cancel()
            self._requests.end()
            trailers = [tunnel_pb2.Pair(key=REASON_KEY, value=reason)] if reason else []
            end = tunnel_pb2.CallEnd(code=code.value[0], details=details, trailers=trailers)
            calls, self._calls = self._calls, {}
            for call in calls.values():
                call.take(tunnel_pb2.CallNews(end=end))

    def _take(self, news: tunnel_pb2.CallNews) -> None:
        call = self._calls.get(news.id)
        if call is not None:
            if news.HasField("end"):
                del self._calls[news.id]
            call.take(news)


class _Call:
    """One call: its messages as they come, then its end."""

    def __init__(
        self,
        stream: _Stream,
        call_id: int,
        deserialize: Callable[[bytes], Any],
        timeout_s: float | None,
    ) -> None:
        self._stream = stream
        self._id = call_id
        self._deserialize = deserialize
        self._initial: tuple[tuple[str, str], ...] = ()
        self._news: asyncio.Queue[bytes | tunnel_pb2.CallEnd] = asyncio.Queue()
        self._timer = None
        if timeout_s is not None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(max(0.0, timeout_s), self._too_late)

    def take(self, news: tunnel_pb2.CallNews) -> None:
        if news.initial:
            self._initial = _tuples(news.initial)
        for message in news.messages:
            self._news.put_nowait(message)
        if news.HasField("end"):
            self._stop_timer()
            self._news.put_nowait(news.end)

    async def next(self) -> Any:
        """The next message. Raises StopAsyncIteration after the last, AioRpcError for a bad end."""
        news = await self._news.get()
        if isinstance(news, bytes):
            return self._deserialize(news)
        self._news.put_nowait(news)  # an end is told however often one asks
        if news.code:
            code = _CODES.get(news.code, grpc.StatusCode.UNKNOWN)
            raise grpc.aio.AioRpcError(
                code,
                grpc.aio.Metadata(*self._initial),
                grpc.aio.Metadata(*_tuples(news.trailers)),
                details=news.details,
            )
        raise StopAsyncIteration

    def cancel(self) -> None:
        self._stop_timer()
        self._stream.drop(self._id)

    def _too_late(self) -> None:
        code = grpc.StatusCode.DEADLINE_EXCEEDED
        self._stream.drop(self._id)
        self._news.put_nowait(tunnel_pb2.CallEnd(code=code.value[0], details="Deadline Exceeded"))

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


async def _one(call: _Call) -> Any:
    """The answer of a method that gives one."""
    try:
        answer = await call.next()
        with contextlib.suppress(StopAsyncIteration):
            await call.next()
        return answer
    except StopAsyncIteration:
        code = grpc.StatusCode.INTERNAL
        none = grpc.aio.Metadata()
        raise grpc.aio.AioRpcError(code, none, none, details="No answer before the end.") from None
    finally:
        call.cancel()


class _Messages:
    """The answers of a method that streams them."""

    def __init__(self, call: _Call) -> None:
        self._call = call

    def __aiter__(self) -> AsyncIterator[Any]:
        return self

    async def __anext__(self) -> Any:
        return await self._call.next()

    def cancel(self) -> None:
        self._call.cancel()


class _Requests:
    """What is sent, in order; what came while a message was being written goes in the next."""

    def __init__(self) -> None:
        self._starts: list[tunnel_pb2.CallStart] = []
        self._cancels: list[int] = []
        self._ended = False
        self._some = asyncio.Event()

    def start(self, start: tunnel_pb2.CallStart) -> None:
        self._starts.append(start)
        self._some.set()

    def cancel(self, call_id: int) -> None:
        self._cancels.append(call_id)
        self._some.set()

    def end(self) -> None:
        """Nothing more is sent."""
        self._ended = True
        self._some.set()

    def __aiter__(self) -> _Requests:
        return self

    async def __anext__(self) -> tunnel_pb2.CallsRequest:
        while not self._ended and not self._starts and not self._cancels:
            self._some.clear()
            await self._some.wait()
        if self._ended:
            raise StopAsyncIteration
        count, size = 0, 0
        while count < len(self._starts) and size < _START_BYTES:
            size += len(self._starts[count].request)
            count += 1
        starts, self._starts = self._starts[:count], self._starts[count:]
        # A cancel overtakes no start: those that wait go when all starts have gone.
        cancels: list[int] = []
        if not self._starts:
            cancels, self._cancels = self._cancels, []
        return tunnel_pb2.CallsRequest(starts=starts, cancels=cancels)


def _tuples(pairs: Sequence[tunnel_pb2.Pair]) -> tuple[tuple[str, str], ...]:
    return tuple((pair.key, pair.value) for pair in pairs)
