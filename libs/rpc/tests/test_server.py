"""The server frame on real sockets: ports, exposure, health, reflection, limits, keepalive."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from libs.config import ConfigError
from libs.errors import Cancelled, NotFound, ResourceExhausted, StartupError, Unavailable
from libs.obs import Metrics
from libs.rpc import PortInUse, RpcServer, call, connect
from libs.rpc.tests.frame_proxy import frame_proxy
from libs.rpc.tests.raw import SERVICE, Stuck, echo, raw_service, unary
from libs.testing.rpc import connected, free_port, serving

EOF = grpc.aio.EOF
HEALTH = "grpc.health.v1.Health"
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
UNKNOWN = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN


def watch(channel: Any, service: str = "") -> Any:
    stub = health_pb2_grpc.HealthStub(channel)
    return stub.Watch(health_pb2.HealthCheckRequest(service=service), timeout=10)


async def check(channel: Any, service: str = "") -> Any:
    stub = health_pb2_grpc.HealthStub(channel)
    request = health_pb2.HealthCheckRequest(service=service)
    return (await call(stub.Check, request, timeout_s=5)).status


class TestPort:
    async def test_a_free_port_is_picked_and_told(self) -> None:
        async with serving() as rpc:
            assert rpc.port > 0
            assert rpc.address == f"127.0.0.1:{rpc.port}"

    async def test_a_second_server_on_one_port_is_refused_in_one_sentence(self) -> None:
        async with serving() as first:
            second = RpcServer([], port=first.port, metrics=Metrics())
            with pytest.raises(PortInUse, match=rf"^Port {first.port} on 127.0.0.1 is in use: "):
                await second.start()

    async def test_a_port_held_by_another_kind_of_program_is_refused_too(self) -> None:
        with socket.socket() as other:
            other.bind(("127.0.0.1", 0))
            other.listen()
            port = other.getsockname()[1]
            with pytest.raises(PortInUse, match=f"Port {port} on 127.0.0.1 is in use"):
                await RpcServer([], port=port, metrics=Metrics()).start()

    async def test_a_port_is_free_again_once_its_server_has_drained(self) -> None:
        port = free_port()
        for _ in range(3):
            async with serving(port=port) as rpc, connected(rpc) as channel:
                assert await check(channel) == SERVING
                await rpc.drain(1)

    async def test_a_host_without_address_is_one_sentence(self) -> None:
        rpc = RpcServer([], "no-such-host.invalid", allow_insecure=True, metrics=Metrics())
        with pytest.raises(StartupError, match=r"no-such-host\.invalid has no address"):
            await rpc.start()


class TestExposure:
    async def test_beyond_loopback_nothing_is_served_without_protection(self) -> None:
        with pytest.raises(ConfigError, match="unprotected: give --tls"):
            RpcServer([], "0.0.0.0", metrics=Metrics())
        RpcServer([], "0.0.0.0", allow_insecure=True, metrics=Metrics())


class TestHealth:
    async def test_a_started_server_does_not_serve_until_told(self) -> None:
        async with serving(raw_service(), names=[SERVICE]) as rpc, connected(rpc) as channel:
            rpc.set_serving(False)
            assert await check(channel) == NOT_SERVING
            rpc.set_serving(True)
            assert await check(channel) == SERVING
            assert await check(channel, SERVICE) == SERVING

    async def test_fresh_from_start_it_is_not_serving(self) -> None:
        rpc = RpcServer([SERVICE], metrics=Metrics())
        await rpc.start()
        async with connected(rpc) as channel:
            assert await check(channel, SERVICE) == NOT_SERVING
        await rpc.stop()

    async def test_an_unknown_service_is_not_found(self) -> None:
        async with serving() as rpc, connected(rpc) as channel:
            with pytest.raises(NotFound) as caught:
                await check(channel, "no.Such")
            assert (caught.value.reason, caught.value.field) == ("UNKNOWN_SERVICE", "service")
            assert (await watch(channel, "no.Such").read()).status == UNKNOWN

    async def test_watchers_see_each_change_and_a_drain_ends_them(self) -> None:
        async with serving(names=[SERVICE]) as rpc, connected(rpc) as channel:
            watching = [watch(channel, SERVICE), watch(channel)]
            for serving_now, status in [(True, SERVING), (False, NOT_SERVING), (True, SERVING)]:
                rpc.set_serving(serving_now)
                assert [(await w.read()).status for w in watching] == [status, status]
            await rpc.drain(5)
            assert [(await w.read()).status for w in watching] == [NOT_SERVING, NOT_SERVING]
            assert [await w.read() for w in watching] == [EOF, EOF]

    async def test_a_watcher_that_left_is_forgotten(self) -> None:
        async with serving() as rpc:
            async with connected(rpc) as channel:
                assert (await watch(channel).read()).status == SERVING
            async with connected(rpc) as channel:
                rpc.set_serving(False)
                assert (await watch(channel).read()).status == NOT_SERVING


class TestDrain:
    async def test_running_calls_finish_while_new_ones_are_refused(self) -> None:
        gate, started = asyncio.Event(), asyncio.Event()

        async def slow(request: bytes, _: Any) -> bytes:
            started.set()
            await gate.wait()
            return b"done"

        service = raw_service(unary={"Slow": slow, "Echo": echo})
        async with serving(service, names=[SERVICE]) as rpc, connected(rpc) as channel:
            running = asyncio.create_task(call(unary(channel, "Slow"), b"", timeout_s=10))
            await started.wait()
            draining = asyncio.create_task(rpc.drain(10))
            assert [m.status async for m in _until(watch(channel), NOT_SERVING)][-1] == NOT_SERVING
            assert await check(channel) == NOT_SERVING  # still answers: it is health
            with pytest.raises(Unavailable) as caught:
                await call(unary(channel, "Echo"), b"", timeout_s=5)
            assert (caught.value.reason, caught.value.retry_after_s) == ("DRAINING", 1.0)
            assert not draining.done()
            gate.set()
            assert await running == b"done"
            await draining
            assert rpc.running_calls == 0

    async def test_calls_that_outlast_the_grace_are_cancelled(self) -> None:
        stuck = Stuck()
        service = raw_service(unary={"Stuck": stuck.unary})
        async with serving(service) as rpc, connected(rpc) as channel:
            running = asyncio.create_task(call(unary(channel, "Stuck"), b"", timeout_s=30))
            await stuck.started.wait()
            await rpc.drain(0.05)
            assert stuck.cancelled.is_set()
            with pytest.raises((Unavailable, Cancelled)):
                await running

    async def test_a_drained_server_never_serves_again(self) -> None:
        async with serving() as rpc:
            await rpc.drain(1)
            rpc.set_serving(True)
            assert not rpc.serving


async def _until(watching: Any, status: Any) -> Any:
    async for message in watching:
        yield message
        if message.status == status:
            return


async def test_reflection_lists_every_service() -> None:
    async with serving(names=[SERVICE]) as rpc, connected(rpc) as channel:
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)

        async def ask() -> Any:
            yield reflection_pb2.ServerReflectionRequest(list_services="")

        answer = await stub.ServerReflectionInfo(ask(), timeout=5).read()
        listed = {service.name for service in answer.list_services_response.service}
    assert listed == {SERVICE, HEALTH, "grpc.reflection.v1alpha.ServerReflection"}


@pytest.mark.parametrize("size", [3_900_000, 4_100_000, 4 << 20, (4 << 20) + 1, 20_000_000])
async def test_messages_beyond_grpcs_default_of_4_mib_pass_both_ways(size: int) -> None:
    async with serving(raw_service(unary={"Echo": echo})) as rpc, connected(rpc) as channel:
        answer = await call(unary(channel, "Echo"), b"x" * size, timeout_s=20)
        assert len(answer) == size


async def test_a_message_beyond_the_servers_limit_is_an_error_not_a_hang() -> None:
    async with (
        serving(raw_service(unary={"Echo": echo}), max_message_bytes=1000) as rpc,
        connected(rpc) as channel,
    ):
        with pytest.raises(ResourceExhausted, match="larger than max"):
            await call(unary(channel, "Echo"), b"x" * 1001, timeout_s=5)
        assert await call(unary(channel, "Echo"), b"x" * 900, timeout_s=5) == b"x" * 900


async def test_a_client_that_pings_often_on_an_idle_connection_is_never_sent_away() -> None:
    """Pings 50 times faster than clients send them, far below the floor gRPC tolerates by default
    (five minutes between pings, two strikes)."""
    async with (
        serving(raw_service(unary={"Echo": echo})) as rpc,
        frame_proxy(rpc.port) as proxy,
        connect(f"127.0.0.1:{proxy.port}", keepalive_s=0.2) as channel,
    ):
        assert await call(unary(channel, "Echo"), b"a", timeout_s=5) == b"a"
        async with asyncio.timeout(30):
            await proxy.wait_until(lambda seen: seen["pongs"] >= 5)
        assert await call(unary(channel, "Echo"), b"b", timeout_s=5) == b"b"
        assert proxy.counts["goaways"] == 0
        assert proxy.counts["connections"] == 1
