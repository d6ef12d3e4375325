"""TLS and mTLS with certificates of the test's own authority."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from pathlib import Path

import grpc
import pytest

from libs.config import ConfigError
from libs.errors import ImpalaError, Unavailable
from libs.obs import Metrics
from libs.rpc import ClientTls, RpcServer, ServerTls, call, connect
from libs.rpc.fresh_channel import FreshChannel
from libs.rpc.reloaded import LOOK_EVERY_S, Reloaded
from libs.rpc.tests.raw import Stuck, echo, raw_service, unary
from libs.rpc.tls import read_pair
from libs.testing.rpc import serving
from libs.testing.tls import Authority, MountedSecret
from libs.testing.waiting import eventually


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
    with pytest.raises(ConfigError, match=r"bad\.pem cannot be used: it is not PEM"):
        await rpc.start()


async def is_served(channel: grpc.aio.Channel) -> bool:
    with contextlib.suppress(ImpalaError):
        return bool(await call(unary(channel, "Echo"), b"x", timeout_s=5) == b"x")
    return False


async def is_served_anew(address: str, tls: ClientTls) -> bool:
    async with connect(address, tls) as channel:
        return await is_served(channel)


async def test_renewed_certificates_are_served_to_new_connections_and_old_ones_go_on(
    tmp_path: Path,
) -> None:
    old, new = Authority(tmp_path / "old"), Authority(tmp_path / "new")
    servers, clients = MountedSecret(tmp_path / "servers"), MountedSecret(tmp_path / "clients")
    servers.renew(old)
    clients.renew(old)
    known_to_new = ClientTls(new.cert, *new.issue("newcomer"))
    stuck = Stuck()
    service = raw_service(unary={"Echo": echo, "Stuck": stuck.unary})
    async with (
        serving(service, tls=servers.server) as rpc,
        connect(rpc.address, clients.client) as channel,
    ):
        running = asyncio.create_task(call(unary(channel, "Stuck"), b"", timeout_s=60))
        await stuck.started.wait()
        assert not await is_served_anew(rpc.address, known_to_new)

        servers.renew(new)
        await eventually(lambda: is_served_anew(rpc.address, known_to_new))
        assert await is_served(channel), "its connection is from before"
        clients.renew(new)
        await eventually(lambda: is_served(channel))
        assert not await is_served_anew(rpc.address, ClientTls(old.cert, *old.issue("late")))
        assert not running.done()
        running.cancel()
        async with asyncio.timeout(5):
            await stuck.cancelled.wait()


async def test_a_channel_whose_certificate_was_renewed_is_closed_after_its_last_call(
    tmp_path: Path, authority: Authority
) -> None:
    clients = MountedSecret(tmp_path / "clients")
    clients.renew(authority)
    stuck = Stuck()
    service = raw_service(unary={"Echo": echo, "Stuck": stuck.unary})
    tls = ServerTls(*authority.issue("server"), client_ca=authority.cert)
    opened: list[grpc.aio.Channel] = []
    async with serving(service, tls=tls) as rpc:

        def open_(credentials: grpc.ChannelCredentials) -> grpc.aio.Channel:
            opened.append(grpc.aio.secure_channel(rpc.address, credentials))
            return opened[-1]

        async with FreshChannel(open_, clients.client.credentials()) as channel:
            running = asyncio.create_task(call(unary(channel, "Stuck"), b"", timeout_s=60))
            await stuck.started.wait()
            clients.renew(authority)

            async def is_replaced() -> bool:
                assert await is_served(channel)
                return len(opened) == 2

            await eventually(is_replaced)
            assert not running.done()
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            shutdown = grpc.ChannelConnectivity.SHUTDOWN
            await eventually(lambda: opened[0].get_state() is shutdown)
            assert await is_served(channel)


async def test_a_closed_channel_opens_no_other_though_its_files_change() -> None:
    opened: list[grpc.aio.Channel] = []

    def open_(credentials: grpc.ChannelCredentials) -> grpc.aio.Channel:
        opened.append(grpc.aio.secure_channel("127.0.0.1:1", credentials))
        return opened[-1]

    channel = FreshChannel(open_, grpc.ssl_channel_credentials)  # new ones at each call
    await channel.close(None)
    assert channel.get_state() is grpc.ChannelConnectivity.SHUTDOWN
    assert len(opened) == 1


def test_files_that_could_not_be_read_are_read_though_nothing_shows_that_they_can_be(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file, now, allowed = tmp_path / "file", [0.0], [True]
    file.write_text("one")

    def read() -> str:
        if not allowed[0]:
            raise PermissionError("Permission denied")
        return file.read_text()

    value = Reloaded([file], read, lambda: now[0])
    allowed[0] = False
    file.write_text("two, longer")
    for _ in range(3):
        now[0] += LOOK_EVERY_S
        assert value.current() == "one"
    allowed[0] = True
    now[0] += LOOK_EVERY_S
    assert value.current() == "two, longer"
    assert caplog.text.count("Permission denied") == 1


def test_files_that_do_not_belong_together_leave_what_was_there_until_they_do(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    authority, now = Authority(tmp_path / "ca"), [0.0]
    cert, key = tmp_path / "tls.crt", tmp_path / "tls.key"

    def write(path: Path, source: Path) -> None:
        path.write_bytes(source.read_bytes())
        now[0] += LOOK_EVERY_S

    first, second = authority.issue("first"), authority.issue("second")
    write(cert, first[0])
    write(key, first[1])
    pair = Reloaded([cert, key], lambda: read_pair(cert, key), lambda: now[0])
    assert pair.current() == (first[1].read_bytes(), first[0].read_bytes())
    write(cert, second[0])
    for _ in range(3):
        assert pair.current() == (first[1].read_bytes(), first[0].read_bytes())
        now[0] += LOOK_EVERY_S
    assert caplog.text.count("do not belong together") == 1
    key.unlink()
    now[0] += LOOK_EVERY_S
    assert pair.current() == (first[1].read_bytes(), first[0].read_bytes())
    write(key, second[1])
    assert pair.current() == (second[1].read_bytes(), second[0].read_bytes())


async def test_all_channels_of_a_process_follow_their_files_together(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clients, authority = MountedSecret(tmp_path / "clients"), Authority(tmp_path / "ca")
    clients.renew(authority)
    first = clients.client.credentials()
    asks = [first, *(clients.client.credentials() for _ in range(9))]
    assert len({id(ask()) for ask in asks}) == 1
    (clients.path / "..1" / "tls.key").write_bytes(authority.issue("another")[1].read_bytes())

    async def is_told() -> bool:
        return len({id(ask()) for ask in asks}) == 1 and "do not belong together" in caplog.text

    await eventually(is_told)
    assert caplog.text.count("do not belong together") == 1


async def test_who_must_show_a_certificate_shows_it_at_every_connection(tmp_path: Path) -> None:
    """A session resumed from before would outlive the CA that vouched for it."""
    old, new = Authority(tmp_path / "old", "old"), Authority(tmp_path / "new", "new")
    servers = MountedSecret(tmp_path / "servers")
    servers.renew(old, old, new)
    client = ssl.create_default_context(cafile=servers.ca)
    client.load_cert_chain(*old.issue("client"))

    def greeted(port: int, session: ssl.SSLSession | None) -> tuple[ssl.SSLSession | None, bool]:
        with (
            socket.create_connection(("127.0.0.1", port), 10) as raw,
            client.wrap_socket(raw, server_hostname="127.0.0.1", session=session) as connection,
        ):
            assert connection.recv(2) == b"hi"
            return connection.session, bool(connection.session_reused)

    async def greet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"hi")
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(
        greet, "127.0.0.1", 0, ssl=servers.server.context()
    ) as server:
        port = server.sockets[0].getsockname()[1]
        session, _ = await asyncio.to_thread(greeted, port, None)
        _, reused = await asyncio.to_thread(greeted, port, session)
        assert not reused
        servers.renew(old, new)

        async def is_refused() -> bool:
            try:
                await asyncio.to_thread(greeted, port, session)
            except (OSError, AssertionError):  # an alert, or an end without a greeting
                return True
            return False

        await eventually(is_refused)
