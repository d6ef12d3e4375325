from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from libs.cluster.client import EtcdClient
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


class Turns:
    """Lets one of several members do one call at a time, in an order that is drawn."""

    def __init__(self, client: EtcdClient, store: ObjectStore, rng: random.Random) -> None:
        self._client, self._store, self._rng = client, store, rng
        self._waiting: list[asyncio.Event] = []

    def member(self, mark: str) -> Coroutine[None, None, Belonging]:
        client, store = self._proxy(self._client), self._proxy(self._store)
        return compare_marks(client, store, lambda: mark)

    async def play(self, tasks: Sequence[asyncio.Task[Belonging]]) -> None:
        while not all(task.done() for task in tasks):  # many short turns
            await asyncio.sleep(0)
            if self._waiting and len(self._waiting) == sum(not task.done() for task in tasks):
                self._waiting.pop(self._rng.randrange(len(self._waiting))).set()

    def _proxy(self, real: Any) -> Any:
        turns = self

        class Proxy:
            def __getattr__(self, name: str) -> Callable[..., Coroutine[None, None, Any]]:
                async def call(*args: Any) -> Any:
                    turn = asyncio.Event()
                    turns._waiting.append(turn)
                    await turn.wait()
                    return await getattr(real, name)(*args)

                return call

        return Proxy()


@pytest.mark.parametrize("seed", range(150))
async def test_members_that_start_together_agree_on_one_mark(
    client: EtcdClient, store: ObjectStore, seed: int
) -> None:
    """Whoever of them is overtaken by whom, at any of their calls."""
    turns = Turns(client, store, random.Random(seed))
    tasks = [asyncio.create_task(turns.member(f"m{number}")) for number in range(3)]
    await turns.play(tasks)
    assert [await task for task in tasks] == [Belonging.TOGETHER] * 3
    entry = await client.get(keys.STORE_MARK)
    assert entry is not None and entry.value == await store.get(keys.STORE_MARK_OBJECT)


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
