"""The router as a process: its flags, its exit codes, its drain."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import IO

import httpx
import pytest

from libs.cluster.client import EtcdClient
from libs.cluster.members import Members
from libs.config import ConfigError, read_config
from libs.errors import StartupError
from libs.rpc import Shutdown
from libs.testing.etcd import EtcdProcess
from services.router.config import RouterConfig
from services.router.main import serve
from services.router.tests.conftest import Stage


def command(*flags: str) -> list[str]:
    return [sys.executable, "-m", "services.router.main", *flags]


def end_of(*flags: str) -> tuple[int, str]:
    done = subprocess.run(command(*flags), capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stderr.strip().splitlines()[-1]


def test_without_keys_nothing_but_loopback_is_served_on_a_trusted_network_either() -> None:
    with pytest.raises(ConfigError, match="--no-auth is for loopback only"):
        read_config(RouterConfig, ["--no-auth", "--host", "0.0.0.0", "--insecure"], env={})
    read_config(RouterConfig, ["--host", "0.0.0.0", "--insecure"], env={})


def test_ports_and_prices_have_documented_defaults() -> None:
    config = read_config(RouterConfig, [], env={})
    assert (config.http_port, config.port, config.price_per_engine_hour) == (8080, 7070, 1.0)
    assert not config.no_auth


def test_an_etcd_that_is_away_is_one_sentence(tmp_path: Path) -> None:
    code, text = end_of(
        *("--no-auth", "--etcd", "127.0.0.1:9", "--etcd-wait-s", "0", "--objects", str(tmp_path)),
        *("--http-port", "0", "--port", "0"),
    )
    assert code == 1
    assert text.startswith("router: etcd at 127.0.0.1:9 cannot be reached")
    assert text.endswith("; start etcd or give its address with --etcd.")


async def test_a_port_in_use_is_one_sentence(bare: Stage) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(StartupError, match=f"^The HTTP port {port} on 127.0.0.1 is in use"):
            await bare.add_router(http_port=port)


def wait_for_url(stderr: IO[str]) -> str:
    for line in stderr:
        if match := re.search(r"serving HTTP url=(\S+)", line):
            return match[1]
    raise AssertionError("the router ended before it served")


@pytest.mark.usefixtures("etcd_client")  # empty: no other test's store belongs to it
def test_it_serves_and_drains_on_sigterm(tmp_path: Path, etcd: EtcdProcess) -> None:
    flags = ("--no-auth", "--etcd", etcd.endpoint, "--objects", str(tmp_path))
    process = subprocess.Popen(
        command(*flags, "--http-port", "0", "--port", "0", "--drain-s", "2"),
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stderr is not None
        url = wait_for_url(process.stderr)
        answer = httpx.get(f"{url}/health", timeout=10)
        assert json.loads(answer.text) == {"status": "ok"}
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"{url}/health", timeout=5)
    finally:
        process.kill()
        process.communicate()


@pytest.mark.usefixtures("etcd_client")
async def test_a_router_whose_name_is_taken_stops_with_a_sentence(
    tmp_path: Path, etcd: EtcdProcess
) -> None:
    config = RouterConfig(
        port=0,
        http_port=0,
        etcd=(etcd.endpoint,),
        objects=str(tmp_path / "objects"),
        no_auth=True,
        member="twin",
        drain_s=1.0,
    )
    first = asyncio.create_task(serve(config, Shutdown()))
    async with EtcdClient([etcd.endpoint]) as client, Members(client, "router") as members:
        registered = asyncio.create_task(members.wait_until(lambda: "twin" in members.current()))
        await asyncio.wait({first, registered}, return_when=asyncio.FIRST_COMPLETED)
        assert registered.done(), "the first router ended before it registered"
        shutdown = Shutdown()
        second = asyncio.create_task(serve(config, shutdown))
        with pytest.raises(StartupError, match="--member"):
            await first
        shutdown.request("the test is over")
        await second


async def test_bound_to_every_interface_it_registers_an_address_that_others_can_dial(
    bare: Stage,
) -> None:
    router = await bare.add_router(
        host="0.0.0.0", no_auth=False, insecure=True, port=0, http_port=0
    )
    port = router.address.rpartition(":")[2]
    async with Members(bare.client, "router") as members:
        infos = [member.info for member in members.current().values()]
    http_port = router.http_url.rpartition(":")[2]
    assert [(info["address"], info["http_url"]) for info in infos if port in info["address"]] == [
        (f"{socket.gethostname()}:{port}", f"http://{socket.gethostname()}:{http_port}")
    ]
