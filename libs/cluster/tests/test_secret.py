"""One secret a cluster, whoever comes first."""

from __future__ import annotations

import asyncio
import secrets

import pytest

from libs.cluster.client import EtcdClient
from libs.cluster.keys import SECRET
from libs.cluster.secret import ClusterSecret, cluster_secret, is_same
from libs.testing.waiting import eventually


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


async def test_a_changed_secret_takes_effect_at_every_member_and_a_lost_one_is_replaced(
    client: EtcdClient,
) -> None:
    async with (
        ClusterSecret(client, lambda: secrets.token_urlsafe(32)) as one,
        ClusterSecret(client, lambda: secrets.token_urlsafe(32)) as two,
    ):
        first = one.value
        assert two.value == first and one.lets_in(first) and not one.lets_in("s" * 43)
        await client.put(SECRET, b"n" * 43)
        await eventually(lambda: {one.value, two.value} == {"n" * 43})
        # A member that has not heard of the change yet is let in for a while.
        assert one.lets_in("n" * 43) and one.lets_in(first)
        await client.delete(SECRET)
        await eventually(lambda: one.value == two.value != "n" * 43)
        assert not one.lets_in(first), "only the last one overlaps"
