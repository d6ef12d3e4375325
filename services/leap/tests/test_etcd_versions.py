"""The version store on a real etcd keeps the promises of its port."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace

import pytest

from libs.clock import SystemClock
from libs.cluster.client import EtcdClient
from libs.cluster.errors import RecordUnreadable
from libs.errors import FailedPrecondition
from libs.records.keys import VERSIONS
from libs.testing.etcd import EtcdProcess
from services.leap.adapters.etcd_versions import EtcdVersions
from services.leap.app import LeapApp
from services.leap.core.version import Replica, Version
from services.leap.tests.factories import manifest_of


@pytest.fixture(scope="module")
def etcd() -> Iterator[EtcdProcess]:
    with EtcdProcess() as process:
        yield process


@pytest.fixture
async def client(etcd: EtcdProcess) -> AsyncIterator[EtcdClient]:
    async with EtcdClient([etcd.endpoint]) as client:
        yield client


@pytest.fixture
def model() -> str:
    """A name no other test uses, with all that a hub id may hold."""
    return f"org/Ünïcode model {uuid.uuid4().hex[:8]}"


class NoReplicas:
    def current(self) -> list[Replica]:
        return []


def version(model: str, seq: int, name: str = "", tensors: int = 2) -> Version:
    return Version(seq, manifest_of(name or seq, model, tensors), created_unix_ms=1000 + seq)


async def test_a_version_comes_back_whole(client: EtcdClient, model: str) -> None:
    store, written = EtcdVersions(client), version(model, 1)
    assert await store.create(written)
    assert await store.get(model, 1, with_tensors=True) == written
    assert await store.get(model, 1, with_tensors=False) == written.without_tensors()
    assert await store.find(model, written.manifest.digest) == written.without_tensors()
    assert await store.get(model, 2, with_tensors=True) is None
    assert await store.find(model, bytes(32)) is None


async def test_a_taken_seq_or_digest_is_refused_and_changes_nothing(
    client: EtcdClient, model: str
) -> None:
    store = EtcdVersions(client)
    assert await store.create(version(model, 1, "first"))
    assert not await store.create(version(model, 1, "second"))
    assert not await store.create(version(model, 2, "first"))
    assert await store.list(model) == [version(model, 1, "first").without_tensors()]


async def test_the_newest_is_the_highest_also_beyond_ten(client: EtcdClient, model: str) -> None:
    store = EtcdVersions(client)
    assert await store.newest(model) is None
    for seq in range(1, 12):
        assert await store.create(version(model, seq))
    newest = await store.newest(model)
    assert newest is not None
    assert newest.seq == 11
    assert [each.seq for each in await store.list(model)] == list(range(1, 12))


async def test_a_model_whose_name_begins_with_another_is_another(
    client: EtcdClient, model: str
) -> None:
    store = EtcdVersions(client)
    assert await store.create(version(model, 1))
    assert await store.create(version(f"{model}/x", 1))
    assert [each.model for each in await store.list(model)] == [model]
    assert {model, f"{model}/x"} <= {each.model for each in await store.list("")}


async def test_thousands_of_tensors_are_kept(client: EtcdClient, model: str) -> None:
    written = version(model, 1, tensors=8000)
    store = EtcdVersions(client)
    assert await store.create(written)
    assert await store.get(model, 1, with_tensors=True) == written


async def test_more_tensors_than_etcd_takes_are_refused_with_the_way_out(
    client: EtcdClient, model: str
) -> None:
    store = EtcdVersions(client)
    with pytest.raises(FailedPrecondition, match="register it without tensors") as caught:
        await store.create(version(model, 1, tensors=40_000))
    assert caught.value.field == "manifest.tensors"
    assert await store.list(model) == []
    bare = version(model, 1)
    assert await store.create(replace(bare, manifest=replace(bare.manifest, tensors=())))


async def test_publishers_in_parallel_get_each_seq_once(client: EtcdClient, model: str) -> None:
    """Two of each digest, through as many apps: four seqs, no gap, each digest with one of them."""
    names = ["a", "b", "c", "d"] * 2
    apps = [LeapApp(EtcdVersions(client), NoReplicas(), SystemClock()) for _ in names]
    registered = await asyncio.gather(
        *(app.register(manifest_of(name, model)) for app, name in zip(apps, names, strict=True))
    )
    by_name = {(name, each.version.seq) for name, each in zip(names, registered, strict=True)}
    assert sorted(seq for _, seq in by_name) == [1, 2, 3, 4]
    assert sum(each.created for each in registered) == 4


async def test_a_record_of_a_later_release_is_refused_by_name(
    client: EtcdClient, model: str
) -> None:
    key = f"{VERSIONS}later/{1:020d}"
    await client.put(key, b'{"v": 99, "model": "later"}')
    with pytest.raises(RecordUnreadable, match=key):
        await EtcdVersions(client).get("later", 1, with_tensors=False)
    await client.delete(key)
