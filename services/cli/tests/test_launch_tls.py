"""What the processes of an instance are told and asked by, with TLS and without."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest

from libs.cluster.client import EtcdClient
from libs.demo.etcd import resolve_etcd
from libs.rpc import RpcServer, ServerTls
from libs.testing.waiting import eventually
from services.cli.certificates import keep
from services.cli.commands.up import with_lone_tls
from services.cli.launch import Launch, PortWishes, Settings, plan
from services.cli.state_dir import StateDir
from services.cli.supervisor.log import Log
from services.cli.supervisor.probes import grpc_serving, http_ok
from services.cli.supervisor.service import OTHER_PLACES, Service, environment, spawn
from services.cli.tls_files import TlsFiles

SERVICES = {"router", "scheduler", "modelserver", "kvstore", "leap"}
WITHIN_S = 60.0


def launch_of(
    state: Path, *, tls: bool, folder: Path | None = None, etcd: Path = Path("/bin/etcd")
) -> Launch:
    settings = Settings(model="m", tls=tls, tls_folder=folder, ports=PortWishes(http=0))
    return plan(settings, StateDir(state), etcd)


def flag(command: Sequence[str], name: str) -> str | None:
    return command[command.index(name) + 1] if name in command else None


@pytest.fixture
def made(tmp_path: Path) -> TlsFiles:
    files = TlsFiles(StateDir(tmp_path).tls)
    keep(files.folder, "box", datetime.now(UTC))
    return files


def test_without_tls_nothing_is_told_of_it(tmp_path: Path) -> None:
    launch = launch_of(tmp_path, tls=False)
    assert launch.url.startswith("http://127.0.0.1:")
    assert launch.tls is None
    flags = [part.partition("=") for service in launch.services for part in service.command]
    assert not [name for name, _, _ in flags if name.startswith("--") and "tls" in name]
    assert not [name for name, _, _ in flags if name.startswith("--") and "cert" in name]
    assert not [value for _, _, value in flags if "https:" in value]


def test_every_service_gets_the_folder_of_the_state(tmp_path: Path) -> None:
    launch = launch_of(tmp_path, tls=True)
    assert launch.url.startswith("https://127.0.0.1:")
    told = {s.service: flag(s.command, "--tls") for s in launch.services if s.service != "etcd"}
    assert told == dict.fromkeys(SERVICES, str(tmp_path / "tls"))


def test_or_the_users_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    launch = launch_of(tmp_path / "state", tls=True, folder=Path("mine"))
    told = {flag(s.command, "--tls") for s in launch.services if s.service != "etcd"}
    assert told == {str(tmp_path / "mine")}


def test_etcd_asks_clients_and_peers_for_certificates(tmp_path: Path) -> None:
    (etcd,) = (s for s in launch_of(tmp_path, tls=True).services if s.service == "etcd")
    folder = tmp_path / "tls"
    for whom in ("", "peer-"):
        assert f"--{whom}cert-file={folder / 'tls.crt'}" in etcd.command
        assert f"--{whom}key-file={folder / 'tls.key'}" in etcd.command
        assert f"--{whom}trusted-ca-file={folder / 'ca.crt'}" in etcd.command
        assert f"--{whom}client-cert-auth" in etcd.command
    urls = [part for part in etcd.command if "://" in part]
    assert len(urls) == 5
    assert all("https://" in part for part in urls)


@asynccontextmanager
async def running(service: Service, folder: Path) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await spawn(service, Log(folder, "etcd"))
    try:
        yield process
    finally:
        process.kill()
        await process.wait()


async def test_etcd_is_healthy_to_the_probe_and_open_to_members_alone(
    tmp_path: Path, made: TlsFiles
) -> None:
    launch = launch_of(tmp_path, tls=True, etcd=resolve_etcd().path)
    (etcd,) = (s for s in launch.services if s.service == "etcd")
    async with running(etcd, tmp_path):
        await eventually(etcd.probe, within_s=WITHIN_S)
        health = f"https://{launch.etcd}/health"
        assert await http_ok(health, made.context)()
        assert not await http_ok(health.replace("https", "http"))()
        assert not await http_ok(health)()
        async with EtcdClient([launch.etcd], tls=made.client()) as client:
            assert await client.get("/nothing") is None


async def test_a_member_under_mutual_tls_is_asked_with_the_certificate(
    tmp_path: Path, made: TlsFiles
) -> None:
    (planned,) = (s for s in launch_of(tmp_path, tls=True).services if s.service == "leap")
    port = planned.ports["grpc"]
    server = RpcServer([], port=port, tls=ServerTls(made.cert, made.key, made.ca))
    await server.start()
    server.set_serving(True)
    try:
        assert await planned.probe()
        assert await grpc_serving(server.address, made.client())()
        assert not await grpc_serving(server.address)()
        torn = TlsFiles(shutil.copytree(made.folder, tmp_path / "torn"))
        torn.key.write_text("torn")
        assert not await grpc_serving(server.address, torn.client())()
    finally:
        await server.stop()


async def test_a_probe_with_torn_files_says_no(made: TlsFiles) -> None:
    made.cert.write_text("torn")
    assert not await http_ok("https://127.0.0.1:1/health", made.context)()


@pytest.mark.parametrize(
    ("typed", "read"),
    [
        (["--tls"], ["--tls="]),
        (["--tls", "--auth"], ["--tls=", "--auth"]),
        (["--auth", "--tls", "-d"], ["--auth", "--tls=", "-d"]),
        (["--tls", "folder", "-d"], ["--tls", "folder", "-d"]),
        (["--tls=folder"], ["--tls=folder"]),
        ([], []),
    ],
)
def test_the_flag_may_stand_alone(typed: list[str], read: list[str]) -> None:
    assert with_lone_tls(typed) == read


def test_services_do_not_inherit_how_commands_reach_a_cluster_elsewhere() -> None:
    ours = dict.fromkeys(OTHER_PLACES, "there") | {"PATH": "/bin", "IMPALA_ETCD_WAIT_S": "9"}
    kept = {"PATH": "/bin", "IMPALA_ETCD_WAIT_S": "9", "OMP_NUM_THREADS": "1"}
    assert environment(ours, {"OMP_NUM_THREADS": "1"}) == kept
    assert "IMPALA_TLS_CERT" in OTHER_PLACES
