"""Commands that speak to an etcd which asks for certificates."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from libs.rpc import ServerTls
from libs.testing.etcd import EtcdProcess
from libs.testing.tls import Authority
from services.cli.main import main


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


@pytest.mark.parametrize(
    ("flags", "part"),
    [
        (["--etcd", "https://h:1"], "--etcd-ca"),
        (["--etcd", "h:1", "--etcd-cert", "/nowhere"], "--etcd-cert and --etcd-key go together"),
        (["--etcd", "h:1", "--etcd-ca", "/nowhere"], "/nowhere does not exist"),
    ],
)
def test_flags_that_cannot_be_meant(
    capsys: pytest.CaptureFixture[str], flags: list[str], part: str
) -> None:
    assert main(["keys", "list", *flags]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and part in said
