from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from libs.cluster.client import EtcdClient
from libs.cluster.entry import Entry
from libs.errors import StartupError
from libs.objects import ObjectStore, open_store
from libs.records import keys
from libs.records.store_mark import Belonging, check_belonging, compare_marks
from libs.testing.etcd import EtcdProcess


@pytest.fixture(scope="module")
def etcd() -> Iterator[EtcdProcess]:
    with EtcdProcess() as process:
        yield process


@pytest_asyncio.fixture
async def client(etcd: EtcdProcess) -> AsyncIterator[EtcdClient]:
    async with EtcdClient([etcd.endpoint]) as client:
        await client.delete(keys.STORE_MARK)
        yield client


@pytest.fixture
def store(tmp_path: Path) -> ObjectStore:
    return open_store(str(tmp_path / "store"))


def token() -> str:
    return "m1"


async def test_the_first_to_look_marks_both_and_all_later_ones_find_them_together(
    client: EtcdClient, store: ObjectStore
) -> None:
    for _ in range(3):
        assert await compare_marks(client, store, token) is Belonging.TOGETHER
    entry = await client.get(keys.STORE_MARK)
    assert entry is not None
    assert entry.value == await store.get(keys.STORE_MARK_OBJECT) == b"m1"


class Overtaken(EtcdClient):
    """Before or after its first look at the mark, another member does all of its own."""

    first = True

    def __init__(self, etcd: EtcdProcess, store: ObjectStore, when: str) -> None:
        super().__init__([etcd.endpoint])
        self._store, self._when = store, when

    async def get(self, key: str, *, revision: int = 0) -> Entry | None:
        first, self.first = self.first, False
        if first and self._when == "before":
            await compare_marks(self, self._store, lambda: "m2")
        found = await super().get(key, revision=revision)
        if first and self._when == "after":
            await compare_marks(self, self._store, lambda: "m2")
        return found


@pytest.mark.parametrize("when", ["before", "after"])
async def test_who_is_overtaken_by_another_that_makes_the_mark_finds_it(
    client: EtcdClient, etcd: EtcdProcess, store: ObjectStore, when: str
) -> None:
    async with Overtaken(etcd, store, when) as overtaken:
        assert await compare_marks(overtaken, store, token) is Belonging.TOGETHER
    assert await store.get(keys.STORE_MARK_OBJECT) == b"m2"


@pytest.mark.parametrize("died", ["before the store was marked", "before etcd was told"])
async def test_who_comes_after_one_that_died_while_marking_ends_it(
    client: EtcdClient, store: ObjectStore, died: str
) -> None:
    await client.put(keys.STORE_MARK, b"new:m0")
    if died == "before etcd was told":
        await store.put(keys.STORE_MARK_OBJECT, b"m0")
    assert await compare_marks(client, store, token) is Belonging.TOGETHER
    entry = await client.get(keys.STORE_MARK)
    assert entry is not None and entry.value == b"m0"


async def test_another_cluster_s_store_and_an_empty_folder_in_its_place_are_told_at_the_start(
    client: EtcdClient, store: ObjectStore, tmp_path: Path
) -> None:
    await check_belonging(client, store, token)
    empty, other = (open_store(str(tmp_path / name)) for name in ("empty", "other"))
    await other.put(keys.STORE_MARK_OBJECT, b"m2")
    for wrong in (empty, other):
        with pytest.raises(StartupError, match=r"\(--objects\) is not this cluster's"):
            await check_belonging(client, wrong, token)
    assert [each.key for each in await empty.list()] == [], "it is not marked"


async def test_an_etcd_that_is_new_or_lost_its_data_starts_with_a_warning(
    client: EtcdClient, store: ObjectStore, caplog: pytest.LogCaptureFixture
) -> None:
    await store.put(keys.STORE_MARK_OBJECT, b"old")
    assert await compare_marks(client, store, token) is Belonging.OTHER_ETCD
    await check_belonging(client, store, token)
    assert "it is new, or lost its data" in caplog.text
    assert await client.get(keys.STORE_MARK) is None
