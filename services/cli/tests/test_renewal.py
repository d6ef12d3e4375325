"""Certificates of an instance that runs for longer than they last."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from libs.testing.waiting import eventually
from services.cli.renewal import see_to, see_to_always
from services.cli.tls_files import TlsFiles

NOW = datetime(2030, 1, 1, tzinfo=UTC)


class Clock:
    def __init__(self) -> None:
        self.now = NOW
        self.looks = 0

    def __call__(self) -> datetime:
        self.looks += 1
        return self.now


@asynccontextmanager
async def running(files: TlsFiles, clock: Clock, said: list[str]) -> AsyncIterator[None]:
    renewing = asyncio.create_task(
        see_to_always(files, "box", said.append, every_s=0.01, clock=clock)
    )
    try:
        yield
    finally:
        renewing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await renewing


@pytest.fixture
def files(tmp_path: Path) -> TlsFiles:
    return TlsFiles(tmp_path / "tls")


def test_what_was_done_is_said_once(files: TlsFiles) -> None:
    assert see_to(files, "box", NOW) == f"made a CA for this instance: {files.ca}"
    assert see_to(files, "box", NOW) == ""
    later = see_to(files, "box", NOW + timedelta(days=340))
    assert later == f"renewed the certificate {files.cert}; the CA is as it was"


async def test_they_are_renewed_before_their_end_and_not_sooner(files: TlsFiles) -> None:
    see_to(files, "box", NOW)
    before, clock, said = files.cert.read_bytes(), Clock(), list[str]()
    async with running(files, clock, said):
        await eventually(lambda: clock.looks >= 3)
        assert (files.cert.read_bytes(), said) == (before, [])
        clock.now += timedelta(days=340)
        await eventually(lambda: bool(said))
    assert files.cert.read_bytes() != before
    assert said == [f"renewed the certificate {files.cert}; the CA is as it was"]


async def test_a_folder_that_cannot_be_written_is_told_and_tried_again(files: TlsFiles) -> None:
    files.folder.parent.joinpath("tls").write_text("in the way")
    clock, said = Clock(), list[str]()
    async with running(files, clock, said):
        await eventually(lambda: bool(said))
        assert "cannot be renewed: Not a directory" in said[0]
        files.folder.unlink()
        await eventually(files.cert.is_file)
