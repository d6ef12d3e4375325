"""What every service keeps of the contract: health, reflection, and an answer to every rpc."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from libs.cluster.client import EtcdClient
from libs.cluster.members import Members
from libs.rpc import connect
from libs.rpc.status import REASON_KEY
from tests.contract.cluster import SERVICES, running
from tests.contract.descriptors import Element, elements, impala_files
from tests.contract.golden import UNIMPLEMENTED, check_golden

UP_WITHIN_S = 90.0
ANSWER_WITHIN_S = 20.0
SERVING = health_pb2.HealthCheckResponse.SERVING
STANDARD = {"grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection"}
TUNNELLED = ("modelserver", "scheduler")
"""The services that routers call for every step."""
# What an empty request without credentials may be refused with; else it is a fault of the server's.
OWN_CODES = {
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.UNIMPLEMENTED,
}
# Of the internal services, the one on a port that clients reach.
MEMBERS_ONLY = "impala.router.v1.BatchWorker."


@pytest.fixture(scope="module")
def etcd_endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running(tmp_path_factory.mktemp("cluster")) as etcd:
        yield etcd.endpoint


@contextlib.asynccontextmanager
async def channel_to(service: str, endpoint: str) -> AsyncIterator[grpc.aio.Channel]:
    """A channel to the service's member once it says that it serves."""
    async with EtcdClient([endpoint]) as client, Members(client, service) as members:
        (member,) = (await members.wait_for(1, timeout_s=UP_WITHIN_S)).values()
    async with connect(str(member.info["address"])) as channel:
        watch = health_pb2_grpc.HealthStub(channel).Watch(
            health_pb2.HealthCheckRequest(), timeout=UP_WITHIN_S
        )
        async for answer in watch:
            if answer.status == SERVING:
                break
        watch.cancel()
        yield channel


def documented(service: str, kind: str) -> list[Element]:
    (file,) = (each for each in impala_files() if each.package == f"impala.{service}.v1")
    return [each for each in elements(file) if each.kind == kind]


@pytest.mark.parametrize("service", SERVICES)
async def test_each_documented_service_is_healthy_and_no_other_is_known(
    service: str, etcd_endpoint: str
) -> None:
    async with channel_to(service, etcd_endpoint) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        for each in documented(service, "service"):
            request = health_pb2.HealthCheckRequest(service=each.name)
            answer = await health.Check(request, timeout=ANSWER_WITHIN_S)
            assert answer.status == SERVING, each.name
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await health.Check(
                health_pb2.HealthCheckRequest(service="impala.none.v1.None"),
                timeout=ANSWER_WITHIN_S,
            )
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND


@pytest.mark.parametrize("service", SERVICES)
async def test_reflection_lists_and_describes_exactly_the_documented_services(
    service: str, etcd_endpoint: str
) -> None:
    names = {each.name for each in documented(service, "service")}
    async with channel_to(service, etcd_endpoint) as channel:
        ask = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo
        questions = [
            reflection_pb2.ServerReflectionRequest(list_services=""),
            *(
                reflection_pb2.ServerReflectionRequest(file_containing_symbol=name)
                for name in sorted(names)
            ),
        ]
        call = ask(iter(questions), timeout=ANSWER_WITHIN_S)
        listed, *described = [answer async for answer in call]
    tunnel = {"impala.common.v1.Tunnel"} if service in TUNNELLED else set()
    shown = {each.name for each in listed.list_services_response.service}
    assert shown == names | STANDARD | tunnel
    assert [len(each.file_descriptor_response.file_descriptor_proto) > 0 for each in described] == [
        True for _ in names
    ]


async def test_every_rpc_is_served_or_says_why_not(etcd_endpoint: str) -> None:
    unserved = []
    for service in SERVICES:
        async with channel_to(service, etcd_endpoint) as channel:
            rpcs = documented(service, "rpc")
            refusals = await asyncio.gather(*(_refusal(channel, each) for each in rpcs))
        for rpc, refusal in zip(rpcs, refusals, strict=True):
            if refusal is None:
                continue
            code, reason, text = refusal
            if rpc.name.startswith(MEMBERS_ONLY):
                assert (code, reason) == (grpc.StatusCode.UNAUTHENTICATED, "NO_MEMBER"), rpc.name
                continue
            assert code in OWN_CODES, f"{rpc.name}: {code} {text}"
            assert reason, f"{rpc.name} refuses without a reason: {code} {text}"
            if code is grpc.StatusCode.UNIMPLEMENTED:
                assert len(text) > 20 and text.endswith("."), f"{rpc.name}: no sentence: {text}"
                unserved.append(f"{rpc.name} {reason}")
    check_golden(
        UNIMPLEMENTED,
        "".join(f"{line}\n" for line in unserved),
        "What is documented and not served has changed.",
    )


async def _refusal(
    channel: grpc.aio.Channel, rpc: Element
) -> tuple[grpc.StatusCode, str, str] | None:
    """Code, reason and text that refuse an empty request; None when it is answered, or when a
    stream begins."""
    service, _, method = rpc.name.rpartition(".")
    path = f"/{service}/{method}"
    asked: Any = iter([b""]) if rpc.node.client_streaming else b""
    try:
        if rpc.node.server_streaming:
            begin = channel.stream_stream if rpc.node.client_streaming else channel.unary_stream
            stream: Any = begin(path)(asked, timeout=ANSWER_WITHIN_S)
            await stream.read()
            stream.cancel()
        else:
            single = channel.stream_unary if rpc.node.client_streaming else channel.unary_unary
            await single(path)(asked, timeout=ANSWER_WITHIN_S)
    except grpc.aio.AioRpcError as error:
        trailers = dict(error.trailing_metadata() or ())
        return error.code(), str(trailers.get(REASON_KEY, "")), error.details() or ""
    return None
