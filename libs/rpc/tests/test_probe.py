"""The probe of a container's health check: against real servers, plain and with TLS."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from libs.config import ConfigError, read_config
from libs.errors import ImpalaError, NotFound
from libs.rpc import ServerTls
from libs.rpc.probe import ProbeConfig, probe
from libs.testing.rpc import free_port, serving
from libs.testing.tls import Authority

NAME = "impala.test.v1.Test"


async def run(port: int, host: str = "127.0.0.1") -> tuple[int | None, str, str]:
    """Exit code, stdout and stderr of the program with its settings in the environment."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "libs.rpc.probe"),
        env={"IMPALA_HOST": host, "IMPALA_PORT": str(port), "IMPALA_PROBE_TIMEOUT_S": "5"},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await process.communicate()
    return process.returncode, out.decode(), err.decode()


async def test_a_serving_server_is_exit_code_0() -> None:
    async with serving(names=[NAME]) as rpc:
        assert await run(rpc.port) == (0, "SERVING\n", "")


async def test_a_server_that_does_not_serve_yet_is_exit_code_1() -> None:
    async with serving(names=[NAME]) as rpc:
        rpc.set_serving(False)
        assert await run(rpc.port) == (1, "NOT_SERVING\n", "")


async def test_no_server_is_exit_code_1_and_one_sentence() -> None:
    code, out, err = await run(free_port())
    assert (code, out) == (1, "")
    assert err.startswith("probe: 127.0.0.1:") and err.count("\n") == 1


async def test_a_wildcard_is_asked_on_loopback() -> None:
    async with serving(names=[NAME]) as rpc:
        assert (await run(rpc.port, "0.0.0.0"))[0] == 0
    assert ProbeConfig(host="::", port=1).target == "[::1]:1"


async def test_one_service_of_a_server_can_be_asked_for() -> None:
    async with serving(names=[NAME]) as rpc:
        assert await probe(ProbeConfig(port=rpc.port, service=NAME)) == "SERVING"
        with pytest.raises(NotFound):
            await probe(ProbeConfig(port=rpc.port, service="impala.test.v1.Other"))


async def test_tls_is_the_servers_own_settings(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    cert, key = authority.issue("server")
    async with serving(names=[NAME], tls=ServerTls(cert, key)) as rpc:
        settings = ProbeConfig(port=rpc.port, tls_cert=cert, tls_key=key)
        assert await probe(settings) == "SERVING"
        with pytest.raises(ImpalaError):
            await probe(ProbeConfig(port=rpc.port))


async def test_where_clients_must_show_a_certificate_the_probe_does(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    cert, key = authority.issue("server")
    async with serving(names=[NAME], tls=ServerTls(cert, key, authority.cert)) as rpc:
        settings = ProbeConfig(port=rpc.port, tls_cert=cert, tls_key=key, tls_ca=authority.cert)
        assert await probe(settings) == "SERVING"


def test_a_port_is_required() -> None:
    with pytest.raises(ConfigError, match="IMPALA_PORT"):
        read_config(ProbeConfig, [], env={})
