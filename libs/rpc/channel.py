"""Clients: one way to connect, and calls that always have a deadline and raise our errors.

A call made with `call`, `upload` or `stream` raises ImpalaError (never AioRpcError) and, when the
calling task is cancelled or the iteration is left early, cancels the call at the server.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Protocol, TypeVar

import grpc

from libs.errors import DeadlineExceeded, ImpalaError, Unavailable
from libs.rpc.fresh_channel import FreshChannel
from libs.rpc.sending import keep_status
from libs.rpc.server import MAX_MESSAGE_BYTES
from libs.rpc.status import from_rpc_error
from libs.rpc.tls import ClientTls

Request = TypeVar("Request")
Response = TypeVar("Response")
Metadata = Sequence[tuple[str, str | bytes]]


class HasDeadline(Protocol):
    """A servicer context, as far as `remaining` needs it."""

    def time_remaining(self) -> float | None: ...


def connect(
    target: str,
    tls: ClientTls | None = None,
    *,
    max_message_bytes: int = MAX_MESSAGE_BYTES,
    keepalive_s: float = 10.0,
    ping_timeout_s: float = 10.0,
) -> grpc.aio.Channel:
    """A channel to "host:port"; it connects on first use and reconnects by itself.

    keepalive_s: seconds between pings, also while idle, so that a vanished server is noticed.
    ping_timeout_s: seconds that an answer to one may take, or the connection is given up.
    gRPC's own retries are off: who retries must know that the call is idempotent.
    """
    options: list[tuple[str, int | str]] = [
        ("grpc.max_receive_message_length", max_message_bytes),
        ("grpc.max_send_message_length", max_message_bytes),
        ("grpc.keepalive_time_ms", max(1, round(keepalive_s * 1000))),
        ("grpc.keepalive_timeout_ms", max(1, round(ping_timeout_s * 1000))),
        # Without it an answer may take a minute where the server's kernel still acknowledges what
        # is sent, as it does for a process that stands still.
        ("grpc.http2.ping_timeout_ms", max(1, round(ping_timeout_s * 1000))),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.enable_retries", 0),
        # A restarted server is found within two seconds (the default backs off to two minutes).
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.min_reconnect_backoff_ms", 500),
        ("grpc.max_reconnect_backoff_ms", 2000),
        # Members of a cluster are never behind the HTTP proxy of some user's environment.
        ("grpc.enable_http_proxy", 0),
    ]
    if tls is None:
        return grpc.aio.insecure_channel(target, options=options)
    if tls.server_name:
        options.append(("grpc.ssl_target_name_override", tls.server_name))
    return FreshChannel(
        lambda credentials: grpc.aio.secure_channel(target, credentials, options=options),
        tls.credentials(),
    )


async def call(
    method: grpc.aio.UnaryUnaryMultiCallable[Request, Response],
    request: Request,
    *,
    timeout_s: float,
    metadata: Metadata = (),
    wait_for_ready: bool = False,
) -> Response:
    """One request, one answer, within `timeout_s` seconds."""
    try:
        return await method(
            request, timeout=timeout_s, metadata=tuple(metadata), wait_for_ready=wait_for_ready
        )
    except grpc.aio.AioRpcError as failure:
        raise from_rpc_error(failure) from failure
    except asyncio.CancelledError:
        raise _cancelled() from None


async def upload(
    method: grpc.aio.StreamUnaryMultiCallable[Request, Response],
    requests: AsyncIterator[Request],
    *,
    timeout_s: float,
    metadata: Metadata = (),
    wait_for_ready: bool = False,
) -> Response:
    """Many requests, one answer, within `timeout_s` seconds from the start."""
    try:
        running = method(
            requests, timeout=timeout_s, metadata=tuple(metadata), wait_for_ready=wait_for_ready
        )
        answer: Response = await keep_status(running)
        return answer
    except grpc.aio.AioRpcError as failure:
        raise from_rpc_error(failure) from failure
    except asyncio.CancelledError:
        raise _cancelled() from None


async def stream(
    method: grpc.aio.UnaryStreamMultiCallable[Request, Response],
    request: Request,
    *,
    timeout_s: float,
    metadata: Metadata = (),
    wait_for_ready: bool = False,
) -> AsyncIterator[Response]:
    """One request, many answers; `timeout_s` seconds bound the whole stream.

    Leave it early only through `contextlib.aclosing`, which cancels the call at once.
    """
    running = method(
        request, timeout=timeout_s, metadata=tuple(metadata), wait_for_ready=wait_for_ready
    )
    try:
        async for response in running:
            yield response
    except grpc.aio.AioRpcError as failure:
        raise from_rpc_error(failure) from failure
    except asyncio.CancelledError:
        raise _cancelled() from None
    finally:
        running.cancel()  # without effect on a call that has ended


def remaining(context: HasDeadline, default_s: float) -> float:
    """Seconds that a call made on behalf of `context` may take: what its caller has left, at most
    `default_s`. Raises DeadlineExceeded when nothing is left."""
    left = context.time_remaining()
    if left is None:
        return default_s
    if left <= 0:
        raise DeadlineExceeded("The caller's deadline has passed.", "DEADLINE_PASSED")
    return min(left, default_s)


def _cancelled() -> BaseException:
    """The CancelledError to raise on, or what it really was: grpc.aio raises CancelledError in a
    caller that nobody cancelled when its channel is closed under it."""
    task = asyncio.current_task()
    if task is None or task.cancelling() > 0:
        return asyncio.CancelledError()
    closed: ImpalaError = Unavailable(
        "The connection was closed during the call.", "CHANNEL_CLOSED"
    )
    return closed
