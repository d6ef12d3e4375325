"""What surrounds every handler: errors become statuses, calls are counted, a drain refuses, and
requests with numbers that are none are turned away (`libs.rpc.finite`).

Hangs, leaks and false alarms of grpc.aio are closed here:
 * A CancelledError raised inside a handler whose own call was not cancelled (a sub-task was, or a
   channel was closed) would leave the client waiting for ever (grpc issue 29248): it becomes
   INTERNAL.
 * A response generator suspended at `yield` when its client goes away would be closed whenever the
   garbage collector comes by: it is closed in the call's own task, at once.
 * A write, or an abort, to a client that is gone fails with an InternalError: the call ends as
   cancelled, for there is nobody to tell and nothing is wrong here.
 * A refusal that comes while the client still sends would reach it as INTERNAL: it is let finish,
   for a moment (`libs.rpc.sending` closes the rest of it at clients of ours).
 * An error whose text does not fit in a header would break the stream: `libs.rpc.status` cuts it.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, NoReturn, TypeVar

import grpc
from prometheus_client import Counter, Gauge, Histogram

from libs.clock import Clock, SystemClock
from libs.errors import DataLoss, ImpalaError, Internal, Unavailable
from libs.obs import LATENCY_BUCKETS, Metrics
from libs.rpc.finite import FiniteRequests, check_finite
from libs.rpc.status import abort, error_of

log = logging.getLogger(__name__)

_T = TypeVar("_T")
_Context = Any  # grpc.aio.ServicerContext; its generics say nothing here.
_CODES = {code.value[0]: code.name for code in grpc.StatusCode}
LINGER_S = 0.25
"""How long a refused client may go on sending."""
_HOUSEKEEPING = ("/grpc.health.", "/grpc.reflection.", "/impala.common.v1.Tunnel/")
"""Not counted and not refused; of a tunnel, each call in it is."""


class InFlight:
    """How many calls run, and whether new ones are refused. Owned by the event loop's thread."""

    def __init__(self) -> None:
        self.count = 0
        self.refusing = False
        self._idle = asyncio.Event()
        self._idle.set()

    def enter(self) -> None:
        self.count += 1
        self._idle.clear()

    def leave(self) -> None:
        self.count -= 1
        if self.count == 0:
            self._idle.set()

    async def wait_idle(self) -> None:
        await self._idle.wait()


class _Meter:
    """The metrics of one method, looked up once: a lookup costs as much as a small call."""

    def __init__(self, method: str, calls: Counter, seconds: Histogram, running: Gauge) -> None:
        self.method = method
        self.housekeeping = method.startswith(_HOUSEKEEPING)
        self.seconds = seconds.labels(method)
        self.running = running.labels(method)
        self.calls = functools.cache(lambda code: calls.labels(method, code))


class CallInterceptor(grpc.aio.ServerInterceptor):
    """Wraps each registered method once and keeps the wrapped handler."""

    def __init__(self, in_flight: InFlight, metrics: Metrics, clock: Clock | None = None) -> None:
        self._in_flight = in_flight
        self._clock = clock or SystemClock()
        self._handlers: dict[str, Any] = {}
        self._calls = metrics.counter(
            "impala_rpc_server_calls", "Calls ended, by status.", ["method", "code"]
        )
        self._seconds = metrics.histogram(
            "impala_rpc_server_seconds",
            "Seconds from a call's start to its end, streams included.",
            ["method"],
            LATENCY_BUCKETS,
        )
        self._running = metrics.gauge("impala_rpc_server_running", "Calls running.", ["method"])

    async def intercept_service(
        self, continuation: Callable[[Any], Awaitable[Any]], handler_call_details: Any
    ) -> Any:
        method: str = handler_call_details.method
        wrapped = self._handlers.get(method)
        if wrapped is None:
            handler = await continuation(handler_call_details)
            if handler is None:
                return None  # gRPC answers UNIMPLEMENTED; a made-up name must not become a label
            wrapped = self._handlers[method] = self.wrap(method, handler)
        return wrapped

    def wrap(self, method: str, handler: Any) -> Any:
        """The handler with all of the above around it."""
        behavior = (
            handler.unary_unary
            or handler.unary_stream
            or handler.stream_unary
            or handler.stream_stream
        )
        if inspect.isasyncgenfunction(behavior):
            behavior = _writing(behavior)
        elif not inspect.iscoroutinefunction(behavior):
            raise TypeError(f"{method} must be a coroutine or an async generator function")

        meter = _Meter(method, self._calls, self._seconds, self._running)

        async def guarded(request: Any, context: _Context) -> Any:
            return await self._guard(meter, _checked(behavior, request, context), context, None)

        async def guarded_stream(request: Any, context: _Context) -> Any:
            requests = FiniteRequests(request)
            try:
                return await self._guard(meter, behavior(requests, context), context, requests)
            finally:
                await requests.aclose()

        kind = "stream" if handler.request_streaming else "unary"
        kind += "_stream" if handler.response_streaming else "_unary"
        make = getattr(grpc, f"{kind}_rpc_method_handler")
        answering = guarded_stream if handler.request_streaming else guarded
        return make(answering, handler.request_deserializer, handler.response_serializer)

    async def _guard(
        self,
        meter: _Meter,
        body: Awaitable[_T],
        context: _Context,
        requests: FiniteRequests | None,
    ) -> _T:
        if meter.housekeeping:
            return await self._answer(meter, body, context, requests)
        if self._in_flight.refusing:
            body.close()  # type: ignore[attr-defined]
            meter.calls("UNAVAILABLE").inc()
            going = Unavailable("This server is going away.", "DRAINING", None, 1.0)
            await _refuse(context, going, requests)
        self._in_flight.enter()
        try:
            return await self._answer(meter, body, context, requests)
        finally:
            self._in_flight.leave()

    async def _answer(
        self,
        meter: _Meter,
        body: Awaitable[_T],
        context: _Context,
        requests: FiniteRequests | None,
    ) -> _T:
        started = self._clock.now()
        meter.running.inc()
        code = "UNKNOWN"
        try:
            try:
                answer = await body
                code = _code_of(context)
                return answer
            except grpc.aio.AbortError:
                code = _code_of(context)
                raise
            except grpc.aio.InternalError:
                code = "CANCELLED"
                raise _client_gone(meter.method) from None
            except asyncio.CancelledError:
                if _is_cancelled_by_its_caller():
                    code = _why_cancelled(context)
                    raise
                error: ImpalaError = Internal(
                    "Something inside the handler was cancelled.", "HANDLER_CANCELLED"
                )
                log.exception("a handler was cancelled from inside", extra={"method": meter.method})
            except Exception as failure:  # noqa: BLE001  # every call ends in a status
                error = error_of(failure)
                _log_failure(meter.method, failure, error)
            try:
                await _refuse(context, error, requests)
            except grpc.aio.InternalError:
                raise _client_gone(meter.method) from None
            finally:
                code = _code_of(context)
        finally:
            meter.running.dec()
            meter.calls(code).inc()
            meter.seconds.observe(self._clock.now() - started)


async def _checked(
    behavior: Callable[[Any, _Context], Awaitable[_T]], request: Any, context: _Context
) -> _T:
    check_finite(request)
    return await behavior(request, context)


async def _refuse(
    context: _Context, error: ImpalaError, requests: FiniteRequests | None
) -> NoReturn:
    """Ends the call. A client that still sends is let finish first, for a moment: to grpc.aio a
    write that the end of the call cut off is an INTERNAL error of its own, and hides the status."""
    if requests is not None:
        await requests.discard(LINGER_S)
    await abort(context, error)


def _writing(
    behavior: Callable[[Any, _Context], AsyncIterator[Any]],
) -> Callable[[Any, _Context], Awaitable[None]]:
    async def write_all(request: Any, context: _Context) -> None:
        async with contextlib.aclosing(behavior(request, context)) as messages:  # type: ignore[type-var]
            async for message in messages:
                await context.write(message)

    return write_all


def _is_cancelled_by_its_caller() -> bool:
    """True when the call's own task was asked to cancel: disconnect, deadline or server stop."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _why_cancelled(context: _Context) -> str:
    left = context.time_remaining()
    return "DEADLINE_EXCEEDED" if left is not None and left <= 0 else "CANCELLED"


def _client_gone(method: str) -> asyncio.CancelledError:
    log.debug("a call's client is gone", extra={"method": method})
    return asyncio.CancelledError()


def _code_of(context: _Context) -> str:
    code = context.code()
    if code is None:  # nobody set one
        return "OK"
    return _CODES.get(code.value[0] if isinstance(code, grpc.StatusCode) else code, "UNKNOWN")


def _log_failure(method: str, failure: Exception, error: ImpalaError) -> None:
    fields = {"method": method, "reason": error.reason}
    if isinstance(error, Internal | DataLoss):
        log.error("%s", failure, exc_info=failure, extra=fields)
    else:
        log.debug("%s", error.message, extra=fields)
