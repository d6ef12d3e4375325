"""A user's own certificates that cannot be used: told in one sentence, before anything starts."""

from __future__ import annotations

import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from libs.testing.tls import Authority
from services.cli.certificate_check import UnusableTls, check
from services.cli.certificates import keep
from services.cli.main import main
from services.cli.tests.tls_folder import folder_of
from services.cli.tls_files import TlsFiles

NOW = datetime.now(UTC)
REMEDY = "give --tls without a folder, which makes its own"


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def files(tmp_path: Path, authority: Authority) -> TlsFiles:
    return folder_of(tmp_path / "mine", authority)


def refusal(files: TlsFiles, now: datetime = NOW) -> str:
    with pytest.raises(UnusableTls) as refused:
        check(files, now)
    said = str(refused.value)
    assert "\n" not in said
    assert REMEDY in said
    return said


def test_a_good_folder_passes(files: TlsFiles) -> None:
    check(files, NOW)


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    said = refusal(TlsFiles(tmp_path / "none"))
    assert said.startswith(f"--tls names {tmp_path / 'none'}, which is no folder")


@pytest.mark.parametrize("name", ["tls.crt", "tls.key", "ca.crt"])
def test_a_file_that_is_missing(files: TlsFiles, name: str) -> None:
    (files.folder / name).unlink()
    assert f"The folder {files.folder} of --tls lacks {name}:" in refusal(files)


@pytest.mark.parametrize("name", ["tls.crt", "tls.key", "ca.crt"])
def test_a_file_that_is_no_pem(files: TlsFiles, name: str) -> None:
    (files.folder / name).write_text("no PEM\n")
    said = refusal(files)
    assert str(files.folder / name) in said
    assert "cannot be used" in said


def test_a_key_of_another_certificate(files: TlsFiles, authority: Authority) -> None:
    _, key = authority.issue("other")
    shutil.copy(key, files.key)
    said = refusal(files)
    assert str(files.key) in said
    assert "they do not belong together" in said


def test_a_certificate_for_another_host(tmp_path: Path, authority: Authority) -> None:
    files = folder_of(tmp_path / "mine", authority, dns="impala.example")
    said = refusal(files)
    assert f"The certificate {files.cert} is for impala.example, not for 127.0.0.1" in said


def test_a_certificate_of_another_ca(files: TlsFiles, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    shutil.copy(Authority(elsewhere).cert, files.ca)
    said = refusal(files)
    assert f"The certificate {files.cert} is refused by who trusts {files.ca}" in said


def test_a_certificate_that_has_expired(tmp_path: Path) -> None:
    keep(tmp_path, "box", NOW - timedelta(days=400))
    said = refusal(TlsFiles(tmp_path))
    end = NOW - timedelta(days=35)
    assert f"The certificate {tmp_path / 'tls.crt'} expired on {end:%Y-%m-%d}" in said


def test_a_ca_that_has_expired(files: TlsFiles, tmp_path: Path) -> None:
    old = tmp_path / "old"
    keep(old, "box", NOW - timedelta(days=4000))
    shutil.copy(old / "ca.crt", files.ca)
    assert f"The certificate {files.ca} expired on " in refusal(files)


def test_a_clock_that_is_behind(files: TlsFiles) -> None:
    said = refusal(files, NOW - timedelta(days=2))
    assert f"The certificate {files.cert} is valid from " in said
    assert "set this machine's clock right" in said


def test_up_says_it_and_starts_nothing(
    tmp_path: Path,
    files: TlsFiles,
    capsys: pytest.CaptureFixture[str],
) -> None:
    files.key.unlink()
    state = tmp_path / "state"
    assert main(["up", "--tls", str(files.folder), "--state", str(state), "--http-port", "0"]) == 1
    said = capsys.readouterr().err
    assert said.count("\n") == 1, said
    assert "lacks tls.key" in said
    assert not list((state / "logs").iterdir())
