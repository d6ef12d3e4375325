"""TLS and mTLS with certificates of the test's own authority."""

from __future__ import annotations

from pathlib import Path

import pytest

from libs.errors import StartupError, Unavailable
from libs.obs import Metrics
from libs.rpc import ClientTls, RpcServer, ServerTls, call, connect
from libs.rpc.tests.raw import echo, raw_service, unary
from libs.testing.rpc import serving
from libs.testing.tls import Authority


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"))


async def test_a_client_that_trusts_the_ca_is_served(authority: Authority) -> None:
    tls = ServerTls(*authority.issue("server"))
    async with (
        serving(raw_service(unary={"Echo": echo}), tls=tls) as rpc,
        connect(rpc.address, ClientTls(ca=authority.cert)) as channel,
    ):
        assert await call(unary(channel, "Echo"), b"x", timeout_s=5) == b"x"


async def test_a_plain_client_of_a_tls_server_is_unavailable(authority: Authority) -> None:
    tls = ServerTls(*authority.issue("server"))
    async with (
        serving(raw_service(unary={"Echo": echo}), tls=tls) as rpc,
        connect(rpc.address) as channel,
    ):
        with pytest.raises(Unavailable):
            await call(unary(channel, "Echo"), b"x", timeout_s=5)


async def test_with_a_client_ca_only_certified_clients_are_served(authority: Authority) -> None:
    tls = ServerTls(*authority.issue("server"), client_ca=authority.cert)
    known = ClientTls(authority.cert, *authority.issue("client"))
    async with serving(raw_service(unary={"Echo": echo}), tls=tls) as rpc:
        async with connect(rpc.address, known) as channel:
            assert await call(unary(channel, "Echo"), b"x", timeout_s=5) == b"x"
        async with connect(rpc.address, ClientTls(ca=authority.cert)) as channel:
            with pytest.raises(Unavailable):
                await call(unary(channel, "Echo"), b"x", timeout_s=5)


async def test_tls_allows_to_listen_beyond_loopback(authority: Authority) -> None:
    rpc = RpcServer([], "0.0.0.0", tls=ServerTls(*authority.issue("server")), metrics=Metrics())
    await rpc.start()
    assert rpc.port > 0
    await rpc.stop()


async def test_a_broken_certificate_is_one_sentence(tmp_path: Path) -> None:
    bad = tmp_path / "bad.pem"
    bad.write_text("not a certificate")
    rpc = RpcServer([], tls=ServerTls(bad, bad), metrics=Metrics())
    with pytest.raises(StartupError, match="check certificate and key"):
        await rpc.start()
