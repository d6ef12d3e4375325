"""Accounts and their API keys.

A key is shown once, when it is made, and is stored nowhere: etcd holds its SHA-256 only. (A slow
password hash would protect a guessable secret; these have at least 128 random bits.) A key is
looked up by its hash, so the time of a lookup tells nothing about keys that exist.

An account's name is 1 to 64 of `A-Z a-z 0-9 . _ -`, the first a letter or a digit: it is shown in
tables and logs and is a folder of the object store. Accounts that older versions made under other
names stay, and may have new keys.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import re
from dataclasses import dataclass, replace
from typing import Any

from libs.cluster import keys
from libs.cluster.client import EtcdClient
from libs.cluster.errors import BadAccountName, RecordExists
from libs.cluster.record import Json, RecordCodec
from libs.cluster.records import RecordStore

KEY_PREFIX = "imp-"
LEAST_TOKEN_BYTES = 16
_ACCOUNT_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True, slots=True)
class Account:
    """`created_at` in Unix seconds."""

    name: str
    created_at: int


@dataclass(frozen=True, slots=True)
class ApiKey:
    """What is known of a key. `hash` (SHA-256 of the whole key, hex) is its id; `hint` its last
    four characters, for people. Times in Unix seconds; `revoked_at` None while it is valid."""

    hash: str
    account: str
    name: str
    hint: str
    created_at: int
    revoked_at: int | None = None


def hash_key(plaintext: str) -> str:
    return hashlib.sha256(plaintext.encode()).hexdigest()


async def create_key(
    client: EtcdClient, account: str, name: str, *, token_bytes: bytes, now: int
) -> str:
    """Makes a key for the account (made too if it is new) and returns the key itself, which cannot
    be had again. `token_bytes` are random, at least 16; `now` is in Unix seconds. BadAccountName
    if no new account may be called that."""
    if len(token_bytes) < LEAST_TOKEN_BYTES:
        raise ValueError(f"an API key needs at least {LEAST_TOKEN_BYTES} random bytes")
    await _ensure_account(client, account, now)
    plaintext = KEY_PREFIX + base64.urlsafe_b64encode(token_bytes).decode().rstrip("=")
    key = ApiKey(hash_key(plaintext), account, name, plaintext[-4:], now)
    await _keys(client).create(key.hash, key)
    return plaintext


async def lookup(client: EtcdClient, key_hash: str) -> ApiKey | None:
    """The valid key with that hash."""
    record = await _keys(client).get(key_hash)
    return record.value if record and record.value.revoked_at is None else None


async def revoke_key(client: EtcdClient, key_hash: str, *, now: int) -> ApiKey:
    """From now on the key is refused; its record stays, to show that it was. RecordMissing if there
    is no such key; revoking twice keeps the first time."""

    def revoked(key: ApiKey) -> ApiKey | None:
        return None if key.revoked_at is not None else replace(key, revoked_at=now)

    return (await _keys(client).update(key_hash, revoked)).value


async def list_keys(client: EtcdClient, account: str | None = None) -> list[ApiKey]:
    """All keys, revoked ones too, oldest first; of one account if it is named."""
    found = [record.value for record in await _keys(client).list()]
    wanted = [key for key in found if account is None or key.account == account]
    return sorted(wanted, key=lambda key: (key.created_at, key.hash))


async def list_accounts(client: EtcdClient) -> list[Account]:
    return [record.value for record in await _accounts(client).list()]


class AccountsView:
    """The keys in memory, kept up to date: `async with AccountsView(client) as accounts`."""

    def __init__(self, client: EtcdClient) -> None:
        self._view = _keys(client).view()

    async def __aenter__(self) -> AccountsView:
        await self._view.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._view.aclose()

    async def start(self) -> None:
        """Returns once filled; ClusterUnavailable if etcd does not answer."""
        await self._view.start()

    async def aclose(self) -> None:
        await self._view.aclose()

    def find(self, plaintext: str) -> ApiKey | None:
        """The valid key, or None. One hash and one table look-up, whatever is asked."""
        record = self._view.get(hash_key(plaintext))
        return record.value if record and record.value.revoked_at is None else None

    @property
    def is_empty(self) -> bool:
        """No key was ever made: a local start may then go without."""
        return not self._view.all()

    @property
    def version(self) -> int:
        return self._view.version

    async def changed(self, seen: int) -> int:
        """Waits until `version` is no longer `seen`; returns the new one."""
        return await self._view.changed(seen)


async def _ensure_account(client: EtcdClient, account: str, now: int) -> None:
    store = _accounts(client)
    if not _ACCOUNT_NAME.fullmatch(account):
        if _may_exist(account) and await store.get(account):
            return
        raise BadAccountName(
            f"{account[:100]!r} cannot be an account's name: at most 64 letters (a-z, A-Z), "
            "digits, dots, underscores and hyphens, the first a letter or a digit."
        )
    with contextlib.suppress(RecordExists):
        await store.create(account, Account(account, now))


def _may_exist(account: str) -> bool:
    try:
        return bool(keys.checked(account))
    except ValueError:
        return False


def _accounts(client: EtcdClient) -> RecordStore[Account]:
    codec = RecordCodec(encode=_account_json, decode=_account_of)
    return RecordStore(client, keys.ACCOUNTS, codec)


def _keys(client: EtcdClient) -> RecordStore[ApiKey]:
    return RecordStore(client, keys.API_KEYS, RecordCodec(encode=_key_json, decode=_key_of))


def _account_json(account: Account) -> Json:
    return {"name": account.name, "created_at": account.created_at}


def _account_of(record: Json, version: int) -> Account:
    return Account(record["name"], record["created_at"])


def _key_json(key: ApiKey) -> dict[str, Any]:
    return {
        "hash": key.hash,
        "account": key.account,
        "name": key.name,
        "hint": key.hint,
        "created_at": key.created_at,
        "revoked_at": key.revoked_at,
    }


def _key_of(record: Json, version: int) -> ApiKey:
    return ApiKey(**record)
