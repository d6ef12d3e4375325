"""Commands about a router that speaks TLS, and about one that does not."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from libs.rpc import ClientTls, ServerTls
from libs.testing.tls import Authority
from services.cli.client import Client
from services.cli.errors import NotReachable
from services.cli.main import main
from services.cli.tests.tls_folder import folder_of

JOBS = {"data": [{"id": "job-1", "model": "m"}]}


class Router(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = json.dumps(JOBS).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


class Quiet(ThreadingHTTPServer):
    def handle_error(self, request: object, client_address: object) -> None:
        """Refused handshakes are what is tried here."""


def serving(tls: ssl.SSLContext | None) -> Iterator[int]:
    with Quiet(("127.0.0.1", 0), Router) as server:
        if tls is not None:
            server.socket = tls.wrap_socket(
                server.socket, server_side=True, do_handshake_on_connect=False
            )
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        yield server.server_address[1]
        server.shutdown()
        thread.join()


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def port(authority: Authority) -> Iterator[int]:
    """Of a router whose certificate is for 127.0.0.1."""
    yield from serving(ServerTls(*authority.issue("router")).context())


@pytest.fixture
def plain_port() -> Iterator[int]:
    yield from serving(None)


@pytest.fixture(autouse=True)
def own_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    for name in ("IMPALA_URL", "IMPALA_CA", "IMPALA_STATE"):
        monkeypatch.delenv(name, raising=False)


def refused(capsys: pytest.CaptureFixture[str], *flags: str, code: int = 1) -> str:
    assert main(["jobs", "list", *flags]) == code
    said = capsys.readouterr().err
    assert said.startswith("impala: ") and said.count("\n") == 1, said
    return said


def test_with_the_ca_by_flag_or_environment(
    authority: Authority,
    port: int,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    url = f"https://127.0.0.1:{port}/v1"
    assert main(["jobs", "list", "--json", "--url", url, "--ca", str(authority.cert)]) == 0
    assert json.loads(capsys.readouterr().out) == JOBS["data"]
    monkeypatch.setenv("IMPALA_URL", url)
    monkeypatch.setenv("IMPALA_CA", str(authority.cert))
    assert main(["jobs", "list", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == JOBS["data"]


def test_a_router_that_asks_for_a_certificate(
    authority: Authority, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asking = ServerTls(*authority.issue("router"), client_ca=authority.cert)
    folder = folder_of(tmp_path / "mine", authority).folder
    with contextmanager(serving)(asking.context()) as port:
        flags = ["--url", f"https://127.0.0.1:{port}"]
        assert main(["jobs", "list", "--json", *flags, "--tls", str(folder)]) == 0
        assert json.loads(capsys.readouterr().out) == JOBS["data"]
        said = refused(capsys, *flags, "--ca", str(authority.cert))
        assert "asks for a certificate" in said and "--tls (IMPALA_TLS)" in said


def test_without_the_ca_it_is_asked_for(port: int, capsys: pytest.CaptureFixture[str]) -> None:
    said = refused(capsys, "--url", f"https://127.0.0.1:{port}")
    assert "is not vouched for by this machine's CAs" in said
    assert "--ca (IMPALA_CA)" in said


def test_with_another_ca_its_file_is_named(
    port: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    other = Authority(folder).cert
    said = refused(capsys, "--url", f"https://127.0.0.1:{port}", "--ca", str(other))
    assert f"is not vouched for by {other}" in said


def test_by_a_name_that_the_certificate_does_not_bear(
    authority: Authority, port: int, capsys: pytest.CaptureFixture[str]
) -> None:
    said = refused(capsys, "--url", f"https://localhost:{port}", "--ca", str(authority.cert))
    assert "certificate is not valid for 'localhost'" in said
    assert "the host as the certificate does" in said


def test_a_ca_file_that_is_none(
    port: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nowhere = tmp_path / "nowhere"
    said = refused(capsys, "--url", f"https://127.0.0.1:{port}", "--ca", str(nowhere), code=2)
    assert f"The CA file {nowhere} cannot be used" in said


def test_plain_http_where_tls_is_spoken(port: int, capsys: pytest.CaptureFixture[str]) -> None:
    said = refused(capsys, "--url", f"http://127.0.0.1:{port}")
    assert "if it speaks TLS, its URL begins with https://" in said


@pytest.mark.parametrize("dies", ["closing", "resetting"])
async def test_a_router_that_dies_in_a_handshake_may_come_back(
    authority: Authority, dies: str
) -> None:
    """So it is no refusal: who polls a batch asks again."""

    def die(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if dies == "resetting":
            at_once = struct.pack("ii", 1, 0)
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, at_once)
        writer.close()

    server = await asyncio.start_server(die, "127.0.0.1", 0)
    url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server, Client(url, tls=ClientTls(authority.cert)) as client:
        with pytest.raises(NotReachable):
            await client.jobs()


def test_tls_where_plain_http_is_spoken(
    plain_port: int, capsys: pytest.CaptureFixture[str]
) -> None:
    said = refused(capsys, "--url", f"https://127.0.0.1:{plain_port}")
    assert "if it speaks none, its URL begins with http://" in said
