"""One flag, `--tls FOLDER`, for every service and for etcd: who is served, who is told what."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
import pytest_asyncio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from libs.errors import Unavailable
from libs.rpc import ClientTls, call, connect
from libs.testing.etcd import EtcdProcess, free_ports
from libs.testing.tls import Authority, MountedSecret
from libs.testing.waiting import eventually
from tests.services.cluster import ALL, HOST, WITHIN_S, Cluster, Member
from tests.services.load import finished, results, submit

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.xdist_group("tls-services"),
    pytest.mark.asyncio(loop_scope="module"),
]
INTERNAL = tuple(name for name in ALL if name != "router")
SERVING = health_pb2.HealthCheckResponse.SERVING


@dataclass(frozen=True)
class World:
    """All services and their etcd, of one CA, listening on every address of this machine."""

    cluster: Cluster
    ca: Authority
    folder: Path
    metrics: dict[str, int]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[World]:
    folder = tmp_path_factory.mktemp("tls")
    ca, secret = Authority(folder / "ca"), MountedSecret(folder / "secret")
    secret.renew(ca)
    metrics = dict(zip(ALL, free_ports(len(ALL)), strict=True))
    with EtcdProcess(tls=secret.server) as etcd:
        async with Cluster(folder / "cluster", etcd.endpoint, secret=secret) as cluster:
            cluster.flags = {
                name: [*everywhere(cluster[name]), "--metrics-port", str(metrics[name])]
                for name in ALL
            }
            # The router serves them with API keys only.
            cluster.flags["router"] = ["--metrics-port", str(metrics["router"])]
            await cluster.up(*ALL)
            yield World(cluster, ca, folder, metrics)
            assert cluster.complaints() == {}


def everywhere(member: Member) -> list[str]:
    return ["--host", "0.0.0.0", "--advertise", member.address]


async def health(member: Member, tls: ClientTls | None) -> int:
    async with connect(member.address, tls) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        answer = await call(stub.Check, health_pb2.HealthCheckRequest(), timeout_s=WITHIN_S)
    return int(answer.status)


async def test_a_batch_and_its_blocks_pass_through_all_of_them(world: World) -> None:
    async with world.cluster["router"].http() as client:
        found = await finished(client, await submit(client, 5, 4))
        assert await results(client, found) == [f"l{at}" for at in range(5)]


@pytest.mark.parametrize("name", INTERNAL)
async def test_a_member_serves_members_only(world: World, name: str) -> None:
    member = world.cluster[name]
    secret = world.cluster.secret
    assert secret is not None and await health(member, secret.client) == SERVING
    stranger = Authority(world.folder / "stranger").issue("member")
    for tls in (None, ClientTls(world.ca.cert), ClientTls(world.ca.cert, *stranger)):
        with pytest.raises(Unavailable, match=f"{member.address} cannot be reached: it hung up"):
            await health(member, tls)


async def test_the_router_serves_clients_without_a_certificate(world: World) -> None:
    router = world.cluster["router"]
    assert await health(router, ClientTls(world.ca.cert)) == SERVING
    with pytest.raises(Unavailable):
        await health(router, None)


@pytest.mark.parametrize("name", ALL)
async def test_the_probe_of_a_container_needs_the_services_own_variables_only(
    world: World, name: str
) -> None:
    member, secret = world.cluster[name], world.cluster.secret
    assert secret is not None
    env = {"IMPALA_PORT": str(member.port), "IMPALA_TLS": str(secret.path)}
    env |= {"IMPALA_HOST": "0.0.0.0", "IMPALA_PROBE_TIMEOUT_S": "30"}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "libs.rpc.probe"),
        env=os.environ | env,
        stdout=asyncio.subprocess.PIPE,
    )
    out, _ = await process.communicate()
    assert (process.returncode, out) == (0, b"SERVING\n")


@pytest.mark.parametrize("name", ALL)
async def test_metrics_are_under_tls_too_and_need_no_certificate(world: World, name: str) -> None:
    at = f"{HOST}:{world.metrics[name]}/metrics"
    told = await asyncio.to_thread(curl, "--cacert", str(world.ca.cert), f"https://{at}")
    assert "impala_rpc_server_calls_total" in told
    async with httpx.AsyncClient(trust_env=False) as client:
        with pytest.raises(httpx.TransportError):
            await client.get(f"http://{at}")


def curl(*arguments: str) -> str:
    done = subprocess.run(
        ["curl", "--silent", "--show-error", "--noproxy", "*", "--max-time", "60", *arguments],
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


async def test_curl_asks_the_router_with_the_ca(world: World) -> None:
    url = f"{world.cluster['router'].url}/v1/models"
    assert '"scripted"' in await asyncio.to_thread(curl, "--cacert", str(world.ca.cert), url)


async def test_a_member_of_another_ca_is_told_of_once_by_all_who_dial_it(world: World) -> None:
    """Its etcd is theirs, as a cluster's own CA may differ from etcd's."""
    cluster, secret = world.cluster, world.cluster.secret
    assert secret is not None
    other = MountedSecret(world.folder / "of-another")
    other.renew(Authority(world.folder / "another", "another"))
    etcd = ("--etcd-ca", str(secret.ca), "--etcd-cert", str(secret.cert))
    scheduler, stranger = cluster["scheduler"], cluster["modelserver-2"]
    flags = ("--tls", str(other.path), *etcd, "--etcd-key", str(secret.key))
    cluster.start("modelserver-2", *flags, *everywhere(stranger), "--metrics-port=-1")
    why = "cannot be reached: its certificate is not of the CA that is trusted here"
    await eventually(lambda: f"{stranger.address} {why}" in scheduler.said(), within_s=WITHIN_S)
    leap = f"Leap did not register the weights: {cluster['leap'].address} {why}"
    await eventually(lambda: leap in stranger.said(), within_s=WITHIN_S)
    # Work goes to those who can be reached.
    async with cluster["router"].http() as client:
        await results(client, await finished(client, await submit(client, 5, 4)))
    assert await cluster.stop("modelserver-2") == 0
    assert scheduler.said().count(f"{stranger.address} {why}") == 1
    assert stranger.said().count(leap) == 1


async def test_a_renewal_that_is_half_written_leaves_what_was_there(world: World) -> None:
    """Each service warns; none gives up what it has, and the whole one is taken."""
    cluster, secret = world.cluster, world.cluster.secret
    assert secret is not None
    before = secret.cert.read_bytes()
    secret.cert.write_bytes(before[: len(before) // 2])
    for name in ALL:
        member = cluster[name]

        async def has_warned() -> bool:
            await health(member, ClientTls(world.ca.cert, *world.ca.issue("asking")))  # noqa: B023
            return "have changed and are not used" in member.said()  # noqa: B023

        await eventually(has_warned, within_s=WITHIN_S)
    async with cluster["router"].http() as client:
        await results(client, await finished(client, await submit(client, 3, 2)))
    secret.renew(world.ca)
    for name in ALL:
        await eventually(lambda: " are read again" in cluster[name].said(), within_s=WITHIN_S)  # noqa: B023
        assert await health(cluster[name], secret.client) == SERVING
