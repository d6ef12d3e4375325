"""A local folder: killed writers, full and read-only disks, what lies about."""

from __future__ import annotations

import asyncio
import errno
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from libs.errors import StartupError
from libs.objects import InvalidKey, ReadOnly, StoreFull, StoreUnavailable, open_store
from libs.objects.errors import from_os
from libs.objects.staging import STAGING, sweep

WRITER = """
import asyncio, sys
from libs.objects import open_store

async def main():
    store = open_store(sys.argv[1])
    writer = await store.put_stream("runs/segment-1")
    while True:
        await writer.write(b"x" * 65536)
        print("wrote", flush=True)

asyncio.run(main())
"""

LIMITED_WRITER = """
import asyncio, resource, sys
from libs.objects import StoreFull, open_store

async def main():
    store = open_store(sys.argv[1])
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
    await store.put("small", b"x" * 50_000)
    try:
        await store.put("large", b"x" * 200_000)
    except StoreFull as error:
        print(error)
    print([info.key for info in await store.list()])

asyncio.run(main())
"""


def staged(root: Path) -> list[Path]:
    return list((root / STAGING).iterdir())


async def test_a_killed_writer_leaves_nothing_visible_and_its_rest_is_swept(tmp_path: Path) -> None:
    writer = await asyncio.create_subprocess_exec(
        sys.executable, "-c", WRITER, str(tmp_path), stdout=subprocess.PIPE
    )
    assert writer.stdout is not None
    for _ in range(3):
        assert await writer.stdout.readline() == b"wrote\n"
    beside = open_store(str(tmp_path))
    assert len(staged(tmp_path)) == 1, "a live writer's file is not swept"
    writer.kill()
    await writer.wait()
    assert await beside.list() == []
    assert len(staged(tmp_path)) == 1
    again = open_store(str(tmp_path))
    assert staged(tmp_path) == []
    assert await again.list() == []


async def test_a_sweep_lets_a_live_writer_finish(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    async with await store.put_stream("o") as writer:
        await writer.write(b"half")
        assert sweep(tmp_path) == 0
        await writer.write(b" and half")
    assert await store.get("o") == b"half and half"
    assert staged(tmp_path) == []


def test_no_room_is_store_full_and_leaves_nothing(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LIMITED_WRITER, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    message, listed = done.stdout.splitlines()
    assert "is full" in message
    assert listed == "['small']"
    assert staged(tmp_path) == []


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (errno.ENOSPC, StoreFull),
        (errno.EDQUOT, StoreFull),
        (errno.EROFS, ReadOnly),
        (errno.EACCES, ReadOnly),
        (errno.ENAMETOOLONG, InvalidKey),
        (errno.EIO, StoreUnavailable),
    ],
)
def test_what_the_system_says_becomes_one_sentence(number: int, kind: type[Exception]) -> None:
    error = from_os(OSError(number, "words"), "/objects", "key")
    assert type(error) is kind
    assert str(error).endswith((".", "again."))


@pytest.mark.parametrize("instead", ["nothing", "a file", "an empty folder"])
async def test_a_store_whose_folder_is_gone_is_away_and_has_lost_nothing(
    tmp_path: Path, instead: str
) -> None:
    root, aside = tmp_path / "objects", tmp_path / "aside"
    store = open_store(str(root))
    await store.put("files/a", b"kept")
    root.rename(aside)
    if instead == "a file":
        root.touch()
    elif instead == "an empty folder":
        root.mkdir()
    uses: tuple[Callable[[], Awaitable[object]], ...] = (
        lambda: store.put("files/b", b""),
        lambda: store.put_if_absent("files/b", b""),
        lambda: store.put_stream("files/b"),
        lambda: store.get("files/a"),
        lambda: store.get_range("files/a", 0, 2),
        lambda: anext(store.stream("files/a")),
        lambda: store.head("files/a"),
        lambda: store.exists("files/a"),
        lambda: store.list(),
        lambda: store.list("files"),
        lambda: store.delete("files/a"),
        lambda: store.sweep_unfinished(0.0),
    )
    for use in uses:
        with pytest.raises(StoreUnavailable) as caught:
            await use()
        assert "files/" not in str(caught.value)
    if root.is_file():
        root.unlink()
    aside.rename(root)
    assert await store.get("files/a") == b"kept"


async def test_an_object_is_not_a_folder_nor_a_folder_an_object(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    await store.put("a/b", b"")
    with pytest.raises(InvalidKey):
        await store.put("a/b/c", b"")
    with pytest.raises(InvalidKey):
        await store.put("a", b"")
    assert [info.key for info in await store.list()] == ["a/b"]
    assert staged(tmp_path) == []


async def test_strangers_files_are_not_listed(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    (tmp_path / ".DS_Store").touch()
    (tmp_path / "a b").touch()
    (tmp_path / "o#1").touch()
    await store.put("o", b"")
    assert [info.key for info in await store.list()] == ["o"]


async def test_a_page_of_a_large_folder_is_its_first_keys(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    for n in range(1500):
        (tmp_path / f"{n:04}").touch()
    page = await store.list(after="0699", limit=3)
    assert [info.key for info in page] == ["0700", "0701", "0702"]


async def test_a_file_url_with_escapes_is_the_folder(tmp_path: Path) -> None:
    folder = tmp_path / "with space"
    await open_store(folder.as_uri()).put("o", b"1")
    assert (folder / "o").read_bytes() == b"1"
    assert await open_store(str(folder)).get("o") == b"1"


def test_a_file_in_place_of_the_folder_is_one_clear_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StartupError, match="not a folder"):
        open_store(str(tmp_path / "file"))
