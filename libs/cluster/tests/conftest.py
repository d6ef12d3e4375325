"""A real etcd for the module, and a client of it for each test."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Iterator

import pytest

from libs.cluster.client import EtcdClient
from libs.testing.etcd import EtcdProcess


@pytest.fixture(scope="session")
def shared_etcd() -> Iterator[EtcdProcess]:
    """Runs throughout; a test that stops or pauses etcd takes `own_etcd`."""
    with EtcdProcess() as etcd:
        yield etcd


@pytest.fixture
def own_etcd() -> Iterator[EtcdProcess]:
    with EtcdProcess() as etcd:
        yield etcd


@pytest.fixture
async def client(shared_etcd: EtcdProcess) -> AsyncIterator[EtcdClient]:
    async with EtcdClient([shared_etcd.endpoint]) as client:
        yield client


@pytest.fixture
async def own_client(own_etcd: EtcdProcess) -> AsyncIterator[EtcdClient]:
    async with EtcdClient([own_etcd.endpoint], per_try_timeout_s=0.5) as client:
        yield client


@pytest.fixture
def name() -> str:
    """A name that no other test uses."""
    return uuid.uuid4().hex[:12]


@pytest.fixture
def prefix(name: str) -> str:
    return f"/impala/test/{name}/"
