"""Logs stay short while they are written to."""

from __future__ import annotations

from pathlib import Path

from services.cli.supervisor.log import Log


def test_a_long_log_is_moved_aside_under_the_hands_of_its_writer(tmp_path: Path) -> None:
    log = Log(tmp_path, "a")
    with log.path.open("ab", buffering=0) as writer:
        writer.write(b"one\n")
        log.bound(4)
        assert not log.before.exists()
        writer.write(b"two\n")
        log.bound(4)
        assert log.before.read_bytes() == b"one\ntwo\n"
        writer.write(b"three\n")
    assert log.path.read_bytes() == b"three\n"
    assert log.tail() == ["three"]


def test_what_cannot_be_kept_is_dropped(tmp_path: Path) -> None:
    log = Log(tmp_path, "a")
    log.path.write_bytes(b"long\n")
    log.before.symlink_to("/dev/full")
    log.bound(1)
    assert log.path.read_bytes() == b""
    assert not log.before.is_symlink()


def test_a_log_that_does_not_exist_is_short(tmp_path: Path) -> None:
    Log(tmp_path, "a").bound(0)
    assert list(tmp_path.iterdir()) == []


def test_a_note_on_a_full_disk_harms_nothing(tmp_path: Path) -> None:
    log = Log(tmp_path, "a")
    log.path.symlink_to("/dev/full")
    log.note("ended")
