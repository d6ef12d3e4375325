"""What a member says at its start of its own certificate."""

from __future__ import annotations

from pathlib import Path

import pytest

from libs.config import ConfigError
from libs.rpc.own_certificate import complaints, look_over, refused
from libs.testing.tls import Authority

Pair = tuple[Path, Path]


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def pair(authority: Authority) -> Pair:
    cert, key = authority.issue("member")
    key.chmod(0o640)  # by the group: as a pod's user reads a mounted secret
    return cert, key


def test_of_one_that_peers_take_nothing_is_said(
    authority: Authority, pair: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    look_over(*pair, authority.cert)
    look_over(*pair, None)
    assert caplog.text == ""


def test_the_host_it_is_for_is_the_dialler_s_to_check(authority: Authority) -> None:
    assert refused(*authority.issue("member", dns="impala.internal"), authority.cert) == ""


def test_an_expired_one_is_told(authority: Authority, caplog: pytest.LogCaptureFixture) -> None:
    cert, key = authority.issue("late", expired=True)
    look_over(cert, key, authority.cert)
    assert f"{cert} is refused by every member that trusts {authority.cert}" in caplog.text
    assert "(certificate has expired): renew it" in caplog.text


def test_one_of_another_ca_is_told(tmp_path: Path, pair: Pair) -> None:
    other = Authority(tmp_path / "other")
    (told,) = complaints(*pair, other.cert)
    assert "or give the CA that signed it" in told


@pytest.mark.parametrize("mode", [0o644, 0o602])
def test_a_key_that_everybody_can_reach_is_told(
    authority: Authority, pair: Pair, mode: int
) -> None:
    pair[1].chmod(mode)
    (told,) = complaints(*pair, authority.cert)
    assert str(pair[1]) in told and told.endswith("chmod 600 it.")


def test_files_that_cannot_be_used_end_the_start(
    tmp_path: Path, authority: Authority, pair: Pair
) -> None:
    broken = tmp_path / "broken.pem"
    broken.write_text("no certificate")
    with pytest.raises(ConfigError, match="cannot be used: they do not belong together"):
        look_over(pair[0], authority.issue("other")[1], authority.cert)
    with pytest.raises(ConfigError, match=r"CA file .*broken\.pem cannot be used"):
        look_over(*pair, broken)
