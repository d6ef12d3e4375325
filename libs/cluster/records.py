"""A store of JSON records under one prefix, changed by compare-and-set only."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from libs.cluster.attempt import Applied, Refused, write_once
from libs.cluster.client import EtcdClient
from libs.cluster.entry import Entry
from libs.cluster.errors import GuardFailed, RecordExists, RecordMissing
from libs.cluster.ops import Compare, Delete, Op, Put
from libs.cluster.record import Record, RecordCodec, token_of
from libs.cluster.view import View

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """`more`: there are records after these."""

    records: tuple[Record[T], ...]
    more: bool


def random_token() -> str:
    return secrets.token_hex(8)


class RecordStore(Generic[T]):
    """`RecordStore(client, "/impala/things/", codec)`.

    An id may hold slashes (`<account>/<batch>`), so that `under` can list a part. `new_token` gives
    a name that no other write has. A `guard` (an election's) is compared in the same transaction as
    the write; GuardFailed means that the writer no longer leads and nothing was written.
    """

    def __init__(
        self,
        client: EtcdClient,
        prefix: str,
        codec: RecordCodec[T],
        *,
        new_token: Callable[[], str] = random_token,
    ) -> None:
        self.prefix = prefix
        self._client = client
        self._codec = codec
        self._new_token = new_token

    def key(self, record_id: str) -> str:
        if not record_id:
            raise ValueError("a record needs an id")
        return self.prefix + record_id

    async def create(
        self,
        record_id: str,
        value: T,
        guard: Compare | None = None,
        *,
        also: Sequence[Op] = (),
    ) -> Record[T]:
        """RecordExists if the id is taken. `also` is applied with it, or not at all."""
        outcome = await self._write(record_id, value, 0, guard, also)
        if isinstance(outcome, Applied):
            return Record(record_id, value, outcome.revision, outcome.revision)
        if outcome.found is None:
            raise self._guard_failed(record_id)
        raise RecordExists(f"{self.key(record_id)} exists already")

    async def get(self, record_id: str) -> Record[T] | None:
        entry = await self._client.get(self.key(record_id))
        return self._read(entry) if entry else None

    async def update(
        self,
        record_id: str,
        fn: Callable[[T], T | None],
        guard: Compare | None = None,
        *,
        also: Sequence[Op] = (),
    ) -> Record[T]:
        """Replaces the value by `fn` of it; with None from `fn` it stays as it is.

        `fn` must be pure: it is called again with the newer value when another writer was faster.
        Returns what is stored afterwards. RecordMissing if there is none. `also` is applied with
        the write, or not at all.
        """
        entry = await self._client.get(self.key(record_id))
        while entry is not None:
            record = self._read(entry)
            value = fn(record.value)
            if value is None:
                return record
            outcome = await self._write(record_id, value, record.mod_revision, guard, also)
            if isinstance(outcome, Applied):
                return Record(record_id, value, outcome.revision, record.create_revision)
            if outcome.found and outcome.found.mod_revision == record.mod_revision:
                raise self._guard_failed(record_id)
            entry = outcome.found
        raise self._missing(record_id)

    async def delete(self, record_id: str, guard: Compare | None = None) -> bool:
        """True if it existed. OutcomeUnknown may be answered by calling again."""
        key = self.key(record_id)
        compares = [guard] if guard else []
        result = await self._client.txn(compares, then=[Delete(key)])
        if not result.succeeded:
            raise self._guard_failed(record_id)
        return result.deleted[0] > 0

    async def list(
        self, *, under: str = "", after: str | None = None, limit: int | None = None
    ) -> list[Record[T]]:
        """By id, from the first one after `after` on (which need not exist)."""
        listing = await self._client.list(
            self.prefix + under, limit=limit, after=self.key(after) if after else ""
        )
        return [self._read(entry) for entry in listing.entries]

    async def list_newest(
        self, *, limit: int, under: str = "", after: str | None = None
    ) -> Page[T]:
        """Newest first by creation. `after` is the id of the last
        record of the page before; RecordMissing if it is gone."""
        before = 0
        if after is not None:
            cursor = await self._client.get(self.key(after))
            if cursor is None:
                raise self._missing(after)
            before = cursor.create_revision
        listing = await self._client.list_newest(
            self.prefix + under, limit=limit, created_before=before
        )
        return Page(tuple(self._read(entry) for entry in listing.entries), listing.more)

    def view(self, *, under: str = "") -> View[Record[T]]:
        """A live copy of the records, by id."""
        return View(self._client, self.prefix + under, self._read, strip=self.prefix)

    async def _write(
        self,
        record_id: str,
        value: T,
        expected: int,
        guard: Compare | None,
        also: Sequence[Op],
    ) -> Applied | Refused:
        token = self._new_token()
        put = Put(self.key(record_id), self._codec.dump(value, token))
        return await write_once(
            self._client,
            put,
            lambda entry: token_of(entry) == token,
            expected=expected,
            guard=guard,
            also=also,
        )

    def _read(self, entry: Entry) -> Record[T]:
        return self._codec.load(entry, entry.key.removeprefix(self.prefix))

    def _guard_failed(self, record_id: str) -> GuardFailed:
        return GuardFailed(f"{self.key(record_id)} was not written: the writer no longer leads")

    def _missing(self, record_id: str) -> RecordMissing:
        return RecordMissing(f"{self.key(record_id)} does not exist")
