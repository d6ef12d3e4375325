"""etcd's password from a file, and its change while a client runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from libs.cluster.client import EtcdClient
from libs.cluster.errors import PermissionRefused
from libs.cluster.password import password_in
from libs.testing.etcd import EtcdProcess


def test_the_newline_at_its_end_is_no_part_of_it(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text(" secret with spaces \n")
    assert password_in(file)() == " secret with spaces "


def test_a_file_that_cannot_be_read_is_named_and_its_content_never_is(tmp_path: Path) -> None:
    with pytest.raises(PermissionRefused, match=r"password file .*/none cannot be read: No such"):
        password_in(tmp_path / "none")()
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    with pytest.raises(PermissionRefused, match="cannot be read: it is not text"):
        password_in(tmp_path / "binary")()


async def test_a_changed_password_takes_effect_at_the_next_login(
    own_etcd: EtcdProcess, prefix: str, tmp_path: Path
) -> None:
    own_etcd.enable_auth(password="first")
    file = tmp_path / "password"
    file.write_text("first\n")
    async with EtcdClient([own_etcd.endpoint], user="root", password=password_in(file)) as client:
        await client.put(prefix + "a", b"1")
        own_etcd.change_password("second")
        with pytest.raises(PermissionRefused, match="--etcd-password-file"):
            await client.put(prefix + "a", b"2")
        file.write_text("second\n")
        await client.put(prefix + "a", b"3")
