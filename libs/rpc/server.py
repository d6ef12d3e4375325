"""The gRPC server that every service runs in.

rpc = RpcServer(["impala.kvstore.v1.KvStore"], host, port)
kvstore_pb2_grpc.add_KvStoreServicer_to_server(api, rpc.server)
await rpc.start()          # bound; health says NOT_SERVING
rpc.set_serving(True)      # when the service can do its work
...
await rpc.drain(10.0)      # NOT_SERVING, new calls refused, running ones get 10 s
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections.abc import Sequence
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from impala.common.v1 import tunnel_pb2_grpc
from libs.clock import SystemClock
from libs.config import check_exposure
from libs.errors import StartupError
from libs.obs import METRICS, Metrics
from libs.rpc.health import Health
from libs.rpc.interceptor import CallInterceptor, InFlight
from libs.rpc.tls import ServerTls
from libs.rpc.tunnel_server import TunnelApi

log = logging.getLogger(__name__)

MAX_MESSAGE_BYTES = 64 << 20
# How long a call that ignores its cancellation may hold up the end of a drain.
_STUBBORN_S = 2.0
_FRAME_BYTES = 1024
"""What a tunnel adds to a message, at most."""
TUNNEL = "impala.common.v1.Tunnel"


class PortInUse(StartupError):
    """Somebody else listens there."""


class RpcServer:
    """A grpc.aio server with Impala's options, health, reflection and error mapping.

    Make it inside the running event loop that will serve. One writer: that loop's thread.
    """

    def __init__(
        self,
        service_names: Sequence[str],
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        tls: ServerTls | None = None,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
        allow_insecure: bool = False,
        tunnelled: bool = False,
        metrics: Metrics = METRICS,
    ) -> None:
        """service_names: full names ("impala.kvstore.v1.KvStore") of the servicers to be added.

        port: 0 picks a free one. max_message_bytes: the largest message, either way.
        tunnelled: their calls may also share a stream (libs.rpc.tunnel).
        allow_insecure: serve beyond loopback without TLS. Raises ConfigError for such a host else.
        """
        check_exposure(host, protected=tls is not None or allow_insecure)
        self.host = host
        self._port = port
        self._tls = tls
        self._health = Health(service_names)
        self._in_flight = InFlight()
        interceptor = CallInterceptor(self._in_flight, metrics)
        self.server = grpc.aio.server(
            interceptors=[interceptor], options=_options(max_message_bytes)
        )
        self.servers: list[Any] = [self.server]
        """To each of which the servicers are added, by their generated `add_..._to_server`."""
        if tunnelled:
            room = max_message_bytes - _FRAME_BYTES
            tunnel = TunnelApi(interceptor.wrap, SystemClock(), room)
            tunnel_pb2_grpc.add_TunnelServicer_to_server(tunnel, self.server)
            self.servers.append(tunnel)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self.server)
        if tunnelled:
            service_names = [*service_names, TUNNEL]
        names = [*service_names, health.SERVICE_NAME, reflection.SERVICE_NAME]
        reflection.enable_server_reflection(names, self.server)

    @property
    def port(self) -> int:
        """The port bound; before `start`, the one asked for."""
        return self._port

    @property
    def address(self) -> str:
        """host:port, as a client on this machine dials it."""
        return _join(self.host, self._port)

    @property
    def serving(self) -> bool:
        return self._health.serving

    @property
    def running_calls(self) -> int:
        """Calls in progress, health and reflection not counted."""
        return self._in_flight.count

    async def start(self) -> None:
        """Bind and accept calls; health stays NOT_SERVING. Raises PortInUse or StartupError."""
        address = _join(self.host, self._port)
        refusal = await asyncio.to_thread(_why_not_bindable, self.host, self._port)
        if refusal is not None:
            raise refusal
        try:
            if self._tls is not None:
                bound = self.server.add_secure_port(address, self._tls.credentials())
            else:
                bound = self.server.add_insecure_port(address)
        except RuntimeError:
            bound = 0
        if bound == 0:
            raise StartupError(
                f"gRPC could not listen on {address}; if TLS is on, check certificate and key."
            )
        self._port = bound
        await self.server.start()
        log.info("listening", extra={"address": self.address, "tls": self._tls is not None})

    def set_serving(self, serving: bool) -> None:
        """Tell health checks and watchers whether the service can do its work."""
        self._health.set_serving(serving)

    async def drain(self, grace_s: float) -> None:
        """Stop gracefully; returns when nothing runs any more.

        Health says NOT_SERVING and watchers are told; new calls are refused with UNAVAILABLE and
        reason DRAINING; running calls get `grace_s` seconds and are then cancelled.
        """
        self._in_flight.refusing = True
        self._health.drain()
        try:
            async with asyncio.timeout(grace_s):
                await self._in_flight.wait_idle()
        except TimeoutError:
            log.warning("calls cut by the drain", extra={"calls": self._in_flight.count})
        await self.stop()

    async def stop(self) -> None:
        """Cancel what runs and close the port. Safe to call more than once."""
        self._in_flight.refusing = True
        self._health.drain()
        # A moment for the last answers and the watchers' farewell to leave; the rest is cancelled.
        try:
            async with asyncio.timeout(0.25 + _STUBBORN_S):
                await self.server.stop(0.25)
                await self._in_flight.wait_idle()  # gRPC is done before the handlers have unwound
        except TimeoutError:
            log.error("a call ignored its cancellation; leaving it behind")


def _options(max_message_bytes: int) -> list[tuple[str, int]]:
    return [
        ("grpc.so_reuseport", 0),  # a second server on the port must fail, not share it
        ("grpc.max_receive_message_length", max_message_bytes),
        ("grpc.max_send_message_length", max_message_bytes),
        # Clients ping every 10 s, also when idle; never answer that with GOAWAY.
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_ping_interval_without_data_ms", 1000),
        ("grpc.http2.max_ping_strikes", 0),
        # And ping them, so that a client whose machine vanished stops holding KV.
        ("grpc.keepalive_time_ms", 20_000),
        ("grpc.keepalive_timeout_ms", 10_000),
        ("grpc.http2.ping_timeout_ms", 10_000),
    ]


def _join(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host and not host.startswith("[") else f"{host}:{port}"


def _why_not_bindable(host: str, port: int) -> StartupError | None:
    """Tried with a plain socket: gRPC prints to stderr when it fails, and does not say why."""
    try:
        family, kind, proto, _, address = socket.getaddrinfo(
            host.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, kind, proto) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
            probe.listen()
    except socket.gaierror:
        return StartupError(f"The host {host} has no address; listen on 127.0.0.1 or a real one.")
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            return PortInUse(
                f"Port {port} on {host} is in use: stop what listens there or give another --port "
                "(0 picks a free one)."
            )
        return StartupError(f"Cannot listen on port {port} of {host}: {error.strerror}.")
    return None
