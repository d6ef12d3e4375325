"""One secret a cluster, whoever comes first."""

from __future__ import annotations

import asyncio

import pytest

from libs.cluster.client import EtcdClient
from libs.cluster.keys import SECRET
from libs.cluster.secret import cluster_secret, is_same


async def test_all_who_come_get_the_same_secret(client: EtcdClient) -> None:
    await client.delete(SECRET)
    fresh = [str(number) * 43 for number in range(5)]
    found = await asyncio.gather(*(cluster_secret(client, each) for each in fresh))
    assert len(set(found)) == 1
    assert found[0] in fresh
    entry = await client.get(SECRET)
    assert entry is not None and entry.value.decode() == found[0]


async def test_a_secret_that_can_be_guessed_is_not_taken(client: EtcdClient) -> None:
    with pytest.raises(ValueError, match="32 characters"):
        await cluster_secret(client, "short")


def test_only_the_secret_itself_is_the_same() -> None:
    assert is_same("s" * 43, "s" * 43)
    for other in ("", "s" * 42, "s" * 44, "é", "\udcff"):
        assert not is_same("s" * 43, other)
