"""Commands that speak to an etcd which asks for a user."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from libs.testing.etcd import EtcdProcess
from services.cli.main import main


def test_keys_are_made_and_listed_as_a_user_and_a_refusal_names_the_settings(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "password"
    file.write_text("right\n")
    with EtcdProcess() as etcd:
        etcd.enable_auth(password="right")
        named = ["--etcd", etcd.endpoint]
        user = ["--etcd-user", "root", "--etcd-password-file", str(file)]
        assert main(["keys", "create", "--account", "a", *named, *user]) == 0
        capsys.readouterr()
        assert main(["keys", "list", *named]) == 1
        said = capsys.readouterr().err
        assert said.count("\n") == 1 and "--etcd-user and --etcd-password-file" in said
        monkeypatch.setenv("IMPALA_ETCD_USER", "root")
        monkeypatch.setenv("IMPALA_ETCD_PASSWORD_FILE", str(file))
        assert main(["keys", "list", "--json", *named]) == 0
        assert [each["account"] for each in json.loads(capsys.readouterr().out)] == ["a"]


def test_a_user_without_a_password_is_a_mistake(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["keys", "list", "--etcd", "h:1", "--etcd-user", "root"]) == 2
    assert "--etcd-user and --etcd-password-file go together" in capsys.readouterr().err
