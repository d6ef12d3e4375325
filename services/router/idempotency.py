"""Idempotency keys: what a client creates under one is created once a day, by any router.

The marker in etcd is written in the transaction that creates the object, so of two requests that
race one creates and the other finds the marker. It holds the request's fingerprint beside the
object's id: the same key with another request is refused, it must not be given an answer to what
it did not ask.
"""

from __future__ import annotations

import hashlib

import msgspec

from libs.cluster.client import EtcdClient
from libs.cluster.entry import Entry
from libs.cluster.errors import RecordUnreadable
from libs.cluster.ops import Compare, Get, Put
from libs.records import keys
from services.router.core.errors import BadRequest
from services.router.domain_errors import IdempotencyKeyReused

DAY_S = 86_400
MAX_KEY_CHARS = 1000
HEADER = "Idempotency-Key"


class Marker(msgspec.Struct, frozen=True, kw_only=True):
    """Value of `/impala/idempotency/<account>/<key>`."""

    id: str
    """Of what was created."""
    fingerprint: str


class Once:
    """One request to create something, under the client's key; without a key it binds nothing."""

    def __init__(
        self, client: EtcdClient, account: str, kind: str, key: str, request: object
    ) -> None:
        """kind: "job", "batch"; keys of different kinds are different keys.
        request: what was asked, checked and without the key; anything that msgspec encodes.

        Raises BadRequest for a key that is too long.
        """
        if len(key) > MAX_KEY_CHARS:
            message = f"The {HEADER} is longer than {MAX_KEY_CHARS} characters."
            raise BadRequest(message, HEADER, "string_above_max_length")
        self._client = client
        self._key = keys.idempotency(account, _name(kind, key)) if key else None
        self._fingerprint = fingerprint(request)
        self._found: Entry | None = None
        self._is_spent = False

    async def made(self) -> str | None:
        """Id of what the key has made already. Raises IdempotencyKeyReused."""
        if self._key is None:
            return None
        self._found = await self._client.get(self._key)
        return None if self._found is None else self.read(self._found)

    def renew(self) -> None:
        """What `made` told of has been deleted since: the key may make it anew."""
        self._is_spent = True

    def compares(self) -> list[Compare]:
        """That nothing was made under the key; after `renew`, nothing since."""
        if self._key is None:
            return []
        if self._is_spent and self._found is not None:
            return [Compare.mod(self._key) == self._found.mod_revision]
        return [Compare.absent(self._key)]

    async def puts(self, made_id: str) -> list[Put]:
        """The marker, for the transaction that makes `made_id`."""
        if self._key is None:
            return []
        lease = await self._client.lease(DAY_S)
        lease.abandon()
        marker = Marker(id=made_id, fingerprint=self._fingerprint)
        return [Put(self._key, msgspec.json.encode(marker), lease.id)]

    def reads(self) -> list[Get]:
        """For the transaction's other branch: its entry, if any, is for `read`."""
        return [] if self._key is None else [Get(self._key)]

    def read(self, entry: Entry) -> str:
        """Id of what was made. Raises IdempotencyKeyReused where something else was asked for."""
        try:
            marker = msgspec.json.decode(entry.value, type=Marker)
        except msgspec.DecodeError as error:
            raise RecordUnreadable(f"{entry.key} is not an idempotency marker: {error}") from error
        if marker.fingerprint != self._fingerprint:
            raise IdempotencyKeyReused
        return marker.id


def fingerprint(request: object) -> str:
    """The same for the same request on every router: SHA-256 of its JSON with sorted keys."""
    return hashlib.sha256(msgspec.json.encode(request, order="sorted")).hexdigest()


def _name(kind: str, key: str) -> str:
    """A key of any length and characters as a name in etcd."""
    return f"{kind}-{hashlib.sha256(key.encode('utf-8', 'surrogatepass')).hexdigest()}"
