"""Commands that speak to an etcd which asks for certificates."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from libs.cluster.client import EtcdClient
from libs.cluster.members import Members
from libs.rpc import ServerTls
from libs.testing.etcd import EtcdProcess
from libs.testing.tls import Authority
from libs.testing.waiting import eventually
from services.cli.main import main
from services.cli.tests.tls_folder import folder_of
from services.cli.tls_files import TlsFiles


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def etcd(authority: Authority) -> Iterator[EtcdProcess]:
    cert, key = authority.issue("etcd")
    with EtcdProcess(tls=ServerTls(cert, key, client_ca=authority.cert)) as process:
        yield process


def test_keys_are_made_and_listed_with_a_certificate(
    authority: Authority,
    etcd: EtcdProcess,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cert, key = authority.issue("operator")
    named = ["--etcd", etcd.endpoint]
    tls = ["--etcd-ca", str(authority.cert), "--etcd-cert", str(cert), "--etcd-key", str(key)]
    assert main(["keys", "create", "--account", "a", *named, *tls]) == 0
    monkeypatch.setenv("IMPALA_ETCD_CA", str(authority.cert))
    monkeypatch.setenv("IMPALA_ETCD_CERT", str(cert))
    monkeypatch.setenv("IMPALA_ETCD_KEY", str(key))
    capsys.readouterr()
    assert main(["keys", "list", "--json", *named]) == 0
    assert [each["account"] for each in json.loads(capsys.readouterr().out)] == ["a"]


def test_a_folder_as_members_have_it_is_enough(
    authority: Authority, etcd: EtcdProcess, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = folder_of(tmp_path / "tls", authority).folder
    flags = ["--etcd", etcd.endpoint, "--tls", str(folder)]
    assert main(["keys", "create", "--account", "a", *flags]) == 0
    capsys.readouterr()
    assert main(["keys", "list", "--json", *flags]) == 0
    assert [each["account"] for each in json.loads(capsys.readouterr().out)] == ["a"]


async def test_kvstores_are_asked_with_the_same_folder(
    authority: Authority, etcd: EtcdProcess, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = folder_of(tmp_path / "tls", authority).folder
    flags = ["--etcd", etcd.endpoint, "--tls", str(folder)]
    command = [sys.executable, "-m", "services.kvstore.main", "--port", "0", *flags]
    process = await asyncio.create_subprocess_exec(*command, "--member", "kv")
    try:
        client = EtcdClient([etcd.endpoint], tls=TlsFiles(folder).client())
        async with client, Members(client, "kvstore") as members:

            async def joined() -> bool:
                return "kv" in members.current()

            await eventually(joined, within_s=60)
        assert await asyncio.to_thread(main, ["kv", "stats", "--json", *flags]) == 0
        assert list(json.loads(capsys.readouterr().out)) == ["kv"]
    finally:
        process.kill()
        await process.wait()


@pytest.mark.slow
def test_what_is_missing_is_named_as_what_may_be_wrong(
    authority: Authority, etcd: EtcdProcess, tmp_path: Path
) -> None:
    folder = folder_of(tmp_path / "tls", authority).folder
    for flags, part in (
        (["--etcd-ca", authority.cert], "one that asks for a certificate: --tls or --etcd-cert"),
        (["--tls", folder, "--etcd-plain"], "one that speaks TLS: --tls or --etcd-ca"),
    ):
        # A process of its own: what gRPC itself says, and when, is settled when it is loaded.
        command = [sys.executable, "-m", "services.cli.main", "keys", "list"]
        ran = subprocess.run(
            [*command, "--etcd", etcd.endpoint, *map(str, flags)],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert ran.returncode == 1
        assert ran.stderr.count("\n") == 1, ran.stderr
        assert part in ran.stderr


@pytest.mark.parametrize(
    ("flags", "part"),
    [
        (["--etcd", "https://h:1"], "--etcd-ca"),
        (["--etcd", "h:1", "--etcd-cert", "/nowhere"], "--etcd-cert and --etcd-key go together"),
        (["--etcd", "h:1", "--etcd-ca", "/nowhere"], "/nowhere does not exist"),
        (["--etcd", "h:1", "--tls", "/nowhere"], "/nowhere/tls.crt does not exist"),
    ],
)
def test_flags_that_cannot_be_meant(
    capsys: pytest.CaptureFixture[str], flags: list[str], part: str
) -> None:
    assert main(["keys", "list", *flags]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and part in said
