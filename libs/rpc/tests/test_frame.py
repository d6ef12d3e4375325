"""From flags to a member's address, name and TLS; and the end of a member that is replaced."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from dataclasses import replace
from pathlib import Path

import pytest

from libs.cluster.client import EtcdClient
from libs.cluster.members import Members
from libs.config import ServiceConfig
from libs.errors import StartupError, Unavailable
from libs.obs import Metrics
from libs.rpc import ClientTls, RpcServer, ServerTls, Shutdown, call, connect
from libs.rpc.frame import (
    address_for_peers,
    client_tls,
    cluster_of,
    etcd_tls,
    member_id_of,
    serve_member,
    server_of,
    server_tls,
)
from libs.rpc.tests.raw import echo, raw_service, unary
from libs.testing.etcd import EtcdProcess
from libs.testing.rpc import serving
from libs.testing.tls import Authority

WITHIN_S = 20.0
SOON_S = 3.0


async def test_a_member_is_dialled_where_it_is_bound_unless_it_says_otherwise() -> None:
    bound = RpcServer([], port=7073, metrics=Metrics())
    wild = RpcServer([], "0.0.0.0", 7073, allow_insecure=True, metrics=Metrics())
    assert address_for_peers(ServiceConfig(), bound) == "127.0.0.1:7073"
    assert address_for_peers(ServiceConfig(), wild) == f"{socket.gethostname()}:7073"
    assert address_for_peers(ServiceConfig(advertise="kv.local:1"), wild) == "kv.local:1"


def test_a_members_name_is_given_or_made_of_its_address() -> None:
    assert member_id_of(ServiceConfig(member="kv-1"), "kvstore", "h:1") == "kv-1"
    assert member_id_of(ServiceConfig(), "kvstore", "127.0.0.1:7073") == "kvstore-127.0.0.1-7073"
    assert "/" not in member_id_of(ServiceConfig(), "kvstore", "[fe80::1/x]:7073")


async def test_members_may_be_known_by_one_name_wherever_they_are_dialled(
    tmp_path: Path,
) -> None:
    authority = Authority(tmp_path)
    cert, key = authority.issue("member", dns="impala.internal")
    config = ServiceConfig(tls_cert=cert, tls_key=key, tls_ca=authority.cert)
    service = raw_service(unary={"Echo": echo})
    async with serving(service, tls=server_tls(config)) as rpc:
        named = client_tls(replace(config, tls_name="impala.internal"))
        async with connect(rpc.address, named) as channel:
            assert await call(unary(channel, "Echo"), b"x", timeout_s=10) == b"x"
        async with connect(rpc.address, client_tls(config)) as channel:
            with pytest.raises(Unavailable):
                await call(unary(channel, "Echo"), b"x", timeout_s=10)


def test_tls_files_serve_both_directions(tmp_path: Path) -> None:
    ca, cert, key = (tmp_path / name for name in ("ca", "cert", "key"))
    for path in (ca, cert, key):
        path.touch()
    config = ServiceConfig(tls_cert=cert, tls_key=key, tls_ca=ca)
    assert server_tls(config) == ServerTls(cert, key, ca)
    assert client_tls(config) == ClientTls(ca, cert, key)
    assert server_tls(ServiceConfig()) is None
    assert client_tls(ServiceConfig()) is None


async def test_etcd_is_asked_as_the_user_of_the_flags_and_a_refusal_names_them(
    tmp_path: Path,
) -> None:
    file = tmp_path / "password"
    file.write_text("right\n")
    with EtcdProcess() as etcd:
        etcd.enable_auth(password="right")
        user = ServiceConfig(etcd=(etcd.endpoint,), etcd_user="root", etcd_password_file=file)
        async with cluster_of(user, Shutdown()) as client:
            await client.put("/impala/a", b"")
        file.write_text("wrong-one\n")
        for config in (user, ServiceConfig(etcd=(etcd.endpoint,))):
            with pytest.raises(StartupError, match="--etcd-user and --etcd-password-file") as told:
                async with cluster_of(config, Shutdown()):
                    pass
            assert "wrong-one" not in str(told.value)


async def test_an_etcd_that_answers_is_handed_over() -> None:
    with EtcdProcess() as etcd:
        async with cluster_of(ServiceConfig(etcd=(etcd.endpoint,)), Shutdown()) as client:
            assert isinstance(client, EtcdClient)
            assert await client.get("/impala/nothing") is None


async def test_an_etcd_that_is_started_later_is_waited_for() -> None:
    etcd = EtcdProcess()
    try:
        config = ServiceConfig(etcd=(etcd.endpoint,))
        async with asyncio.timeout(WITHIN_S), contextlib.AsyncExitStack() as stack:
            entering = stack.enter_async_context(cluster_of(config, Shutdown()))
            waiting = asyncio.create_task(entering)
            await asyncio.to_thread(etcd.start)
            assert await (await waiting).get("/impala/nothing") is None
    finally:
        etcd.close()


async def test_who_waits_for_etcd_can_be_told_to_stop() -> None:
    shutdown = Shutdown()
    config = ServiceConfig(etcd=("127.0.0.1:9",), etcd_wait_s=3600)
    shutdown.request("the test")
    with pytest.raises(StartupError, match="start etcd or give its address"):
        async with asyncio.timeout(WITHIN_S), cluster_of(config, shutdown):
            raise AssertionError("there is no etcd")


async def test_who_waits_for_an_etcd_that_never_answers_stops_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        config = ServiceConfig(etcd=(f"127.0.0.1:{mute.getsockname()[1]}",), etcd_wait_s=3600)
        shutdown = Shutdown()

        async def start() -> None:
            async with cluster_of(config, shutdown):
                raise AssertionError("there is no etcd")

        starting = asyncio.create_task(start())
        asked, _ = await asyncio.to_thread(mute.accept)
        with asked:
            shutdown.request("the test")
            # Well before the call to etcd would have given up.
            async with asyncio.timeout(SOON_S):
                with pytest.raises(StartupError, match="Stopped before etcd answered"):
                    await starting


async def test_a_replaced_member_stops_with_its_sentence_and_the_new_one_stays() -> None:
    config = ServiceConfig(port=0, member="kv-1", metrics_port=-1)
    with EtcdProcess() as etcd:
        async with EtcdClient([etcd.endpoint]) as client, Members(client, "kvstore") as members:
            shutdown = Shutdown()

            def serve(incarnation: str) -> asyncio.Task[None]:
                rpc = server_of(config, ["impala.kvstore.v1.KvStore"])
                run = serve_member(
                    rpc, client, config, shutdown, service="kvstore", incarnation=incarnation
                )
                return asyncio.create_task(run)

            async with asyncio.timeout(WITHIN_S):
                old = serve("old")
                await members.wait_for(1)
                new = serve("new")
                with pytest.raises(ExceptionGroup) as caught:
                    await old
                (error,) = caught.value.exceptions
                assert isinstance(error, StartupError)
                assert str(error) == (
                    "Another process has registered as kv-1; give each its own --member name."
                )
                await members.wait_until(
                    lambda: [each.incarnation for each in members.current().values()] == ["new"]
                )
                shutdown.request("the test is over")
                await new


async def test_a_member_speaks_to_etcd_in_mutual_tls_by_its_flags(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    cert, key = authority.issue("etcd")
    with EtcdProcess(tls=ServerTls(cert, key, client_ca=authority.cert)) as etcd:
        cert, key = authority.issue("kvstore")
        plain = ServiceConfig(etcd=(etcd.endpoint,), etcd_wait_s=0)
        known = replace(plain, etcd_ca=authority.cert, etcd_cert=cert, etcd_key=key)
        assert etcd_tls(plain) is None
        async with cluster_of(known, Shutdown()) as client:
            await client.put("/impala/a", b"1")
        with pytest.raises(StartupError, match="--etcd"):
            async with cluster_of(plain, Shutdown()):
                raise AssertionError("etcd let one in without a certificate")
