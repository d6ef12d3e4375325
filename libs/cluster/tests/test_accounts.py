"""API keys: shown once, stored as hashes, valid until revoked."""

from __future__ import annotations

import asyncio
import hashlib
import json
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
from libs.cluster.errors import BadAccountName, RecordMissing
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


async def test_keys_that_could_be_guessed_are_refused(client: EtcdClient) -> None:
    with pytest.raises(ValueError, match="random bytes"):
        await create_key(client, "acct", "k", token_bytes=b"short", now=1)
    with pytest.raises(RecordMissing):
        await revoke_key(client, "0" * 64, now=1)


@pytest.mark.parametrize(
    "account",
    ["", "''", '"a"', "a/b", "..", ".a", "-a", "_a", "a b", "a\n", "é", "a:b", "\x00", "a" * 65],
)
async def test_no_new_account_has_a_name_that_is_not_plain(
    client: EtcdClient, account: str
) -> None:
    before = await list_keys(client), await list_accounts(client)
    with pytest.raises(BadAccountName, match="at most 64 letters"):
        await create_key(client, account, "k", token_bytes=bytes([9] * 32), now=1)
    assert (await list_keys(client), await list_accounts(client)) == before


async def test_an_account_with_another_name_that_is_there_already_stays_in_use(
    client: EtcdClient, name: str
) -> None:
    old = f"{name} née Ä"
    await client.put(
        f"/impala/accounts/{old}",
        json.dumps({"v": 1, "record": {"name": old, "created_at": 1}}).encode(),
    )
    token = hashlib.sha256(name.encode()).digest()
    plaintext = await create_key(client, old, "k", token_bytes=token, now=2)
    key = await lookup(client, hash_key(plaintext))
    assert key is not None and key.account == old


async def test_the_longest_name_there_may_be(client: EtcdClient) -> None:
    account = "9aZ._-" + "x" * 58
    await create_key(client, account, "k", token_bytes=bytes([8] * 32), now=1)
    assert account in [each.name for each in await list_accounts(client)]
