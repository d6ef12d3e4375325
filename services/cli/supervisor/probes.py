"""Ways to ask a service whether it can do its work."""

from __future__ import annotations

import ssl
from collections.abc import Callable

import grpc
import httpx
from grpc_health.v1 import health_pb2, health_pb2_grpc

from libs.config import ConfigError
from libs.rpc import ClientTls, connect
from services.cli.supervisor.service import Probe

WITHIN_S = 2.0


def http_ok(url: str, tls: Callable[[], ssl.SSLContext] | None = None) -> Probe:
    """A GET is answered with 200. tls: made anew each time, for files may have been renewed."""

    async def probe() -> bool:
        try:
            verify = True if tls is None else tls()
            async with httpx.AsyncClient(
                trust_env=False, timeout=WITHIN_S, verify=verify
            ) as client:
                return (await client.get(url)).status_code == httpx.codes.OK
        except (httpx.HTTPError, ConfigError):
            return False

    return probe


def grpc_serving(address: str, tls: ClientTls | None = None) -> Probe:
    """gRPC's health service says that the server serves."""

    async def probe() -> bool:
        try:
            async with connect(address, tls) as channel:
                stub = health_pb2_grpc.HealthStub(channel)
                answer = await stub.Check(health_pb2.HealthCheckRequest(), timeout=WITHIN_S)
        except (grpc.aio.AioRpcError, ConfigError):
            return False
        return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)

    return probe


def every(*probes: Probe) -> Probe:
    """All of them say yes."""

    async def probe() -> bool:
        for each in probes:
            if not await each():
                return False
        return True

    return probe
