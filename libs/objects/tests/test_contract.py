"""What every store does, whatever is behind it."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from libs.objects import BadRange, InvalidKey, ObjectNotFound, ObjectStore

MIB = 1 << 20


async def collect(store: ObjectStore, key: str, start: int = 0) -> bytes:
    return b"".join([chunk async for chunk in store.stream(key, start)])


async def keys(
    store: ObjectStore, prefix: str = "", after: str | None = None, limit: int | None = None
) -> list[str]:
    return [info.key for info in await store.list(prefix, after, limit)]


async def test_what_was_put_is_got(store: ObjectStore) -> None:
    await store.put("files/file-1", b"one")
    assert await store.get("files/file-1") == b"one"
    await store.put("files/file-1", b"")
    assert await store.get("files/file-1") == b""


async def test_head_tells_size_and_time_and_an_etag_that_changes(store: ObjectStore) -> None:
    await store.put("a", b"12345")
    first = await store.head("a")
    assert (first.key, first.size) == ("a", 5)
    assert abs(datetime.now(UTC) - first.modified) < timedelta(minutes=5)
    await store.put("a", b"123456")
    assert (await store.head("a")).etag != first.etag


async def test_put_if_absent_writes_once(store: ObjectStore) -> None:
    assert await store.put_if_absent("run/segment", b"first")
    assert not await store.put_if_absent("run/segment", b"second")
    assert await store.get("run/segment") == b"first"


async def test_of_racing_put_if_absent_exactly_one_wins(store: ObjectStore) -> None:
    data = [b"%d" % n for n in range(8)]
    won = await asyncio.gather(*(store.put_if_absent("race", item) for item in data))
    assert won.count(True) == 1
    assert await store.get("race") == data[won.index(True)]


async def test_a_missing_object_is_not_found(store: ObjectStore) -> None:
    await store.put("there", b"")
    for call in (store.get, store.head, lambda key: store.get_range(key, 0, 1)):
        with pytest.raises(ObjectNotFound, match="'there/not'"):
            await call("there/not")
    with pytest.raises(ObjectNotFound):
        await collect(store, "not")
    assert not await store.exists("not")
    assert await store.exists("there")


async def test_ranges_are_cut_at_the_end(store: ObjectStore) -> None:
    await store.put("a", b"0123456789")
    assert await store.get_range("a", 3, 4) == b"3456"
    assert await store.get_range("a", 8, 100) == b"89"
    assert await store.get_range("a", 10, 1) == b""
    assert await store.get_range("a", 4, 0) == b""
    with pytest.raises(BadRange, match="10 bytes"):
        await store.get_range("a", 11, 1)
    with pytest.raises(BadRange):
        await store.get_range("a", 11, 0)


async def test_a_stream_starts_anywhere(store: ObjectStore) -> None:
    await store.put("a", b"0123456789")
    assert await collect(store, "a") == b"0123456789"
    assert await collect(store, "a", 7) == b"789"
    assert await collect(store, "a", 10) == b""
    with pytest.raises(BadRange):
        await collect(store, "a", 11)


async def test_a_large_stream_comes_in_chunks(store: ObjectStore) -> None:
    data = bytes(range(256)) * (5 * MIB // 256)
    await store.put("big", data)
    chunks = [chunk async for chunk in store.stream("big")]
    assert b"".join(chunks) == data
    assert len(chunks) > 1
    assert max(map(len, chunks)) <= MIB


async def test_a_written_stream_is_visible_only_after_close(store: ObjectStore) -> None:
    part = b"x" * (3 * MIB)
    writer = await store.put_stream("out/o")
    for _ in range(4):
        await writer.write(part)
    assert not await store.exists("out/o")
    assert await keys(store) == []
    await writer.close()
    assert (await store.head("out/o")).size == 12 * MIB
    await writer.abort()
    assert await store.exists("out/o")


async def test_a_stream_that_fails_leaves_the_old_object(store: ObjectStore) -> None:
    await store.put("o", b"old")

    async def fail_midway() -> None:
        async with await store.put_stream("o") as writer:
            await writer.write(b"y" * (9 * MIB))
            raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        await fail_midway()
    assert await store.get("o") == b"old"
    assert await keys(store) == ["o"]


async def test_an_empty_stream_is_an_empty_object(store: ObjectStore) -> None:
    async with await store.put_stream("o"):
        pass
    assert await store.get("o") == b""


async def test_listing_is_by_key_in_folders_and_pages(store: ObjectStore) -> None:
    names = ["a/1", "a/10", "a/2", "a/b/3", "ab", "b/1"]
    for name in reversed(names):
        await store.put(name, b"x")
    assert await keys(store) == names
    assert await keys(store, "a") == await keys(store, "a/") == names[:4]
    assert await keys(store, after="a/10") == names[2:]
    assert await keys(store, "a", after="a/10", limit=1) == ["a/2"]
    assert await keys(store, limit=0) == []
    assert await keys(store, "none") == []


async def test_paging_by_the_last_key_meets_every_object_once(store: ObjectStore) -> None:
    names = sorted(f"p/{n:x}" for n in range(23))
    for name in names:
        await store.put(name, b"")
    seen: list[str] = []
    while page := await keys(store, "p", after=seen[-1] if seen else None, limit=5):
        seen += page
    assert seen == names


async def test_delete_is_idempotent(store: ObjectStore) -> None:
    await store.put("a", b"")
    await store.delete("a")
    await store.delete("a")
    assert not await store.exists("a")


@pytest.mark.parametrize(
    "key", ["", "/a", "a/", "a//b", "../a", "a/../b", "./a", ".staging/x", "a b", "a\0", "ä", "a#1"]
)
async def test_keys_that_are_no_keys_are_refused(store: ObjectStore, key: str) -> None:
    for call in (store.get, store.delete, store.put_stream, store.head):
        with pytest.raises(InvalidKey):
            await call(key)
    with pytest.raises(InvalidKey):
        await store.put(key, b"")


async def test_a_key_of_the_longest_parts_works_everywhere(store: ObjectStore) -> None:
    key = "/".join(["k" * 200] * 4)
    await store.put(key, b"1")
    assert await store.get(key) == b"1"
    with pytest.raises(InvalidKey, match="longer than"):
        await store.put(key + "k", b"1")
