"""The certificates that `impala up --tls` makes, and when it makes them anew."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509

from services.cli.certificate_check import check
from services.cli.certificates import keep, names_of
from services.cli.tls_files import TlsFiles

NOW = datetime(2030, 1, 1, tzinfo=UTC)
FILES = ("ca.crt", "ca.key", "tls.crt", "tls.key")


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def changed(folder: Path, before: dict[str, bytes]) -> set[str]:
    return {name for name, data in contents(folder).items() if before.get(name) != data}


def certificate(path: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(path.read_bytes())


def test_a_first_start_makes_a_ca_and_a_certificate_for_this_machine(tmp_path: Path) -> None:
    folder = tmp_path / "state" / "tls"
    assert keep(folder, "box", NOW) == "made"
    assert contents(folder).keys() == set(FILES)
    made = certificate(folder / "tls.crt")
    assert names_of(made) == ["localhost", "box", "127.0.0.1", "::1"]
    made.verify_directly_issued_by(certificate(folder / "ca.crt"))


def test_only_its_owner_reads_the_keys(tmp_path: Path) -> None:
    folder = tmp_path / "tls"
    keep(folder, "box", NOW)
    modes = {path.name: path.stat().st_mode & 0o777 for path in folder.iterdir()}
    assert (modes["ca.key"], modes["tls.key"]) == (0o600, 0o600)
    assert folder.stat().st_mode & 0o077 == 0


def test_what_was_made_passes_the_check_that_an_instance_makes(tmp_path: Path) -> None:
    now = datetime.now(UTC)
    keep(tmp_path, "box", now)
    check(TlsFiles(tmp_path), now)


@pytest.mark.parametrize("days", [0, 300, 334])
def test_a_later_start_leaves_all_as_it_is(tmp_path: Path, days: int) -> None:
    keep(tmp_path, "box", NOW)
    before = contents(tmp_path)
    assert keep(tmp_path, "box", NOW + timedelta(days=days)) is None
    assert not changed(tmp_path, before)


@pytest.mark.parametrize("days", [336, 364, 400])
def test_with_less_than_thirty_days_left_it_is_renewed_and_clients_keep_the_ca(
    tmp_path: Path, days: int
) -> None:
    keep(tmp_path, "box", NOW)
    before, later = contents(tmp_path), NOW + timedelta(days=days)
    assert keep(tmp_path, "box", later) == "renewed"
    assert changed(tmp_path, before) == {"tls.crt", "tls.key"}
    renewed = certificate(tmp_path / "tls.crt")
    assert renewed.not_valid_after_utc == later + timedelta(days=365)
    renewed.verify_directly_issued_by(certificate(tmp_path / "ca.crt"))


def test_a_ca_that_ends_is_made_anew_with_its_certificate(tmp_path: Path) -> None:
    keep(tmp_path, "box", NOW)
    before = contents(tmp_path)
    assert keep(tmp_path, "box", NOW + timedelta(days=3621)) == "made"
    assert changed(tmp_path, before) == set(FILES)


def test_no_certificate_outlives_its_ca(tmp_path: Path) -> None:
    keep(tmp_path, "box", NOW)
    keep(tmp_path, "box", NOW + timedelta(days=3600))
    ends = [certificate(tmp_path / name).not_valid_after_utc for name in ("tls.crt", "ca.crt")]
    assert ends[0] == ends[1]


def test_a_machine_that_is_called_differently_now_gets_a_certificate_for_that(
    tmp_path: Path,
) -> None:
    keep(tmp_path, "box", NOW)
    assert keep(tmp_path, "other", NOW) == "renewed"
    assert "other" in names_of(certificate(tmp_path / "tls.crt"))


@pytest.mark.parametrize("host", ["", "b\u00fcro", "localhost"])
def test_a_name_that_no_certificate_can_bear_is_left_out(tmp_path: Path, host: str) -> None:
    keep(tmp_path, host, NOW)
    assert names_of(certificate(tmp_path / "tls.crt")) == ["localhost", "127.0.0.1", "::1"]
    assert keep(tmp_path, host, NOW) is None


def test_a_start_that_was_killed_after_its_new_ca_is_made_good(tmp_path: Path) -> None:
    folder, other = tmp_path / "tls", tmp_path / "other"
    for each in (folder, other):
        keep(each, "box", NOW)
    for name in ("ca.crt", "ca.key"):
        (folder / name).write_bytes((other / name).read_bytes())
    assert keep(folder, "box", NOW) == "renewed"
    renewed = certificate(folder / "tls.crt")
    renewed.verify_directly_issued_by(certificate(other / "ca.crt"))


@pytest.mark.parametrize(
    ("name", "done"),
    [("tls.key", "renewed"), ("tls.crt", "renewed"), ("ca.key", "made"), ("ca.crt", "made")],
)
@pytest.mark.parametrize("content", [None, b"torn", b"another's"])
def test_a_file_that_is_missing_torn_or_of_another_start_is_made_good(
    tmp_path: Path, name: str, done: str, content: bytes | None
) -> None:
    folder, other = tmp_path / "tls", tmp_path / "other"
    for each in (folder, other):
        keep(each, "box", NOW)
    if content is None:
        (folder / name).unlink()
    else:
        data = (other / name).read_bytes()
        (folder / name).write_bytes(data if content == b"another's" else data[:40])
    assert keep(folder, "box", NOW) == done
    assert keep(folder, "box", NOW) is None
