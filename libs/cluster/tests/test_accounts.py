"""API keys: shown once, stored as hashes, valid until revoked."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from libs.cluster.accounts import (
    Account,
    AccountsView,
    create_key,
    hash_key,
    list_accounts,
    list_keys,
    lookup,
    revoke_key,
)
from libs.cluster.client import EtcdClient
from libs.cluster.errors import RecordMissing
from libs.testing.etcd import EtcdProcess


async def test_a_key_is_found_by_its_hash_and_its_text_is_stored_nowhere(
    client: EtcdClient, name: str
) -> None:
    plaintext = await create_key(client, name, "laptop", token_bytes=bytes(range(32)), now=100)
    assert plaintext.startswith("imp-") and len(plaintext) == 4 + 43
    key = await lookup(client, hash_key(plaintext))
    assert key is not None
    assert (key.account, key.name, key.created_at) == (name, "laptop", 100)
    assert key.hint == plaintext[-4:]
    assert await lookup(client, hash_key(plaintext + "x")) is None
    for entry in (await client.list("/impala/")).entries:
        assert plaintext.encode() not in entry.value
        assert plaintext not in entry.key


async def test_an_account_has_many_keys_and_is_made_with_its_first(
    client: EtcdClient, name: str
) -> None:
    for index in range(2):
        await create_key(client, name, f"k{index}", token_bytes=bytes([7, index] * 16), now=index)
    assert [key.name for key in await list_keys(client, name)] == ["k0", "k1"]
    assert Account(name, 0) in await list_accounts(client)


async def test_a_revoked_key_is_refused_everywhere_and_keeps_its_record(
    own_etcd: EtcdProcess, own_client: EtcdClient, name: str
) -> None:
    async with AccountsView(own_client) as accounts:
        assert accounts.is_empty
        seen = accounts.version
        plaintext = await create_key(own_client, name, "k", token_bytes=bytes(32), now=1)
        await accounts.changed(seen)
        key = accounts.find(plaintext)
        assert key is not None and key.account == name
        assert accounts.find("imp-wrong") is None

        seen = accounts.version
        revoked = await revoke_key(own_client, key.hash, now=5)
        assert revoked == replace(key, revoked_at=5)
        assert await revoke_key(own_client, key.hash, now=9) == revoked
        async with asyncio.timeout(10):
            await accounts.changed(seen)
        assert accounts.find(plaintext) is None
        assert not accounts.is_empty
        assert await lookup(own_client, key.hash) is None
        assert await list_keys(own_client, name) == [revoked]


async def test_keys_that_could_be_guessed_and_names_with_slashes_are_refused(
    client: EtcdClient,
) -> None:
    with pytest.raises(ValueError, match="random bytes"):
        await create_key(client, "acct", "k", token_bytes=b"short", now=1)
    with pytest.raises(ValueError, match="slash"):
        await create_key(client, "a/b", "k", token_bytes=bytes(32), now=1)
    with pytest.raises(RecordMissing):
        await revoke_key(client, "0" * 64, now=1)
