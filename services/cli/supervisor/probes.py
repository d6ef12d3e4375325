"""Ways to ask a service whether it can do its work."""

from __future__ import annotations

import grpc
import httpx
from grpc_health.v1 import health_pb2, health_pb2_grpc

from libs.rpc import connect
from services.cli.supervisor.service import Probe

WITHIN_S = 2.0


def http_ok(url: str) -> Probe:
    """A GET is answered with 200."""

    async def probe() -> bool:
        try:
            async with httpx.AsyncClient(trust_env=False, timeout=WITHIN_S) as client:
                return (await client.get(url)).status_code == httpx.codes.OK
        except httpx.HTTPError:
            return False

    return probe


def grpc_serving(address: str) -> Probe:
    """gRPC's health service says that the server serves."""

    async def probe() -> bool:
        async with connect(address) as channel:
            stub = health_pb2_grpc.HealthStub(channel)
            try:
                answer = await stub.Check(health_pb2.HealthCheckRequest(), timeout=WITHIN_S)
            except grpc.aio.AioRpcError:
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
