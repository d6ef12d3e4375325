"""What a client is told of a server that it cannot reach: from real handshakes that fail."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from libs.errors import Unavailable
from libs.rpc import ClientTls, RpcServer, ServerTls, call, connect
from libs.rpc.tests.raw import echo, raw_service, unary
from libs.rpc.unreachable import Unreachable, unreachable
from libs.testing.rpc import free_port, serving
from libs.testing.tls import Authority


class World:
    """A CA with a server's and a client's certificate, and another CA."""

    def __init__(self, folder: Path) -> None:
        self.ca, self.other = Authority(folder / "ca"), Authority(folder / "other")
        self.server, self.client = self.ca.issue("server"), self.ca.issue("client")

    @property
    def known(self) -> ClientTls:
        return ClientTls(self.ca.cert, *self.client)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


@asynccontextmanager
async def server(tls: ServerTls | None) -> AsyncIterator[RpcServer]:
    async with serving(raw_service(unary={"Echo": echo}), tls=tls) as rpc:
        yield rpc


async def said(address: str, tls: ClientTls | None) -> str:
    async with connect(address, tls) as channel:
        with pytest.raises(Unavailable) as told:
            await call(unary(channel, "Echo"), b"x", timeout_s=10)
    return str(told.value)


async def test_a_server_of_another_ca_is_named_with_the_setting(world: World) -> None:
    async with server(ServerTls(*world.server, world.ca.cert)) as rpc:
        text = await said(rpc.address, ClientTls(world.other.cert, *world.client))
    assert text == (
        f"{rpc.address} cannot be reached: its certificate is not of the CA that is trusted here: "
        "check --tls or --tls-ca."
    )


async def test_an_expired_certificate_is_told_as_that(world: World) -> None:
    expired = world.ca.issue("expired", expired=True)
    async with server(ServerTls(*expired, world.ca.cert)) as rpc:
        text = await said(rpc.address, world.known)
    assert text.startswith(f"{rpc.address} cannot be reached: its certificate has expired, or ")


async def test_a_certificate_for_another_host_is_told_as_that(world: World) -> None:
    elsewhere = world.ca.issue("elsewhere", dns="elsewhere.internal")
    async with server(ServerTls(*elsewhere, world.ca.cert)) as rpc:
        text = await said(rpc.address, world.known)
    assert "its certificate is for another name: " in text and "--tls-name" in text


@pytest.mark.parametrize("kind", ["plain", "no certificate", "another CA's", "expired"])
async def test_who_is_refused_by_the_server_is_told_what_to_check(world: World, kind: str) -> None:
    tls = {
        "plain": None,
        "no certificate": ClientTls(world.ca.cert),
        "another CA's": ClientTls(world.ca.cert, *world.other.issue("stranger")),
        "expired": ClientTls(world.ca.cert, *world.ca.issue("late", expired=True)),
    }[kind]
    async with server(ServerTls(*world.server, world.ca.cert)) as rpc:
        text = await said(rpc.address, tls)
    assert text.startswith(f"{rpc.address} cannot be reached: it hung up at once, ")
    assert text.endswith("check --tls, or --tls-cert here and --tls-ca there.")


async def test_a_server_without_tls_is_told_as_that(world: World) -> None:
    async with server(None) as rpc:
        text = await said(rpc.address, world.known)
    assert text.startswith(f"{rpc.address} cannot be reached: it speaks no TLS, ")


async def test_without_tls_it_is_the_system_s_reason() -> None:
    port = free_port()
    text = await said(f"127.0.0.1:{port}", None)
    assert text == f"127.0.0.1:{port} cannot be reached: connection refused."
    assert "its host has no address" in await said("nowhere.invalid:1", None)


def test_the_settings_are_the_callers() -> None:
    failed = "failed to connect to all addresses; last error: UNKNOWN: ipv6:%5B::1%5D:7: "
    refused = unreachable(failed + "... CERTIFICATE_VERIFY_FAILED: x: OK", "etcd")
    assert refused is not None and refused.peer == "[::1]:7"
    assert refused.why.endswith("check --tls or --etcd-ca")
    other = unreachable(failed + "Hostname Verification Check failed.", "etcd")
    assert other is not None and other.why.endswith("have it issued for the one dialled")
    assert unreachable(failed + "handshaker shutdown: OK") == Unreachable(
        "[::1]:7", "handshaker shutdown"
    )


@pytest.mark.parametrize("details", ["Socket closed", "GOAWAY received", ""])
def test_a_connection_that_was_there_is_no_failure_to_connect(details: str) -> None:
    assert unreachable(details) is None
