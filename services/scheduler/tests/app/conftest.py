from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from libs.cluster.client import EtcdClient
from libs.objects import ObjectStore, open_store
from libs.testing.etcd import EtcdProcess


@pytest.fixture(scope="session")
def etcd() -> Iterator[EtcdProcess]:
    with EtcdProcess() as process:
        yield process


@pytest.fixture
async def client(etcd: EtcdProcess) -> AsyncIterator[EtcdClient]:
    async with EtcdClient([etcd.endpoint]) as client:
        await client.delete_prefix("/impala/")
        yield client


@pytest.fixture
def objects(tmp_path: Path) -> ObjectStore:
    return open_store(str(tmp_path / "objects"))
