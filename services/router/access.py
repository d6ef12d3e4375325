"""Who calls: an API key's account, or the local one on a start without keys."""

from __future__ import annotations

from typing import Protocol

from libs.errors import Unauthenticated
from libs.records.ids import LOCAL_ACCOUNT


class KeyRecord(Protocol):
    @property
    def account(self) -> str: ...


class Keys(Protocol):
    """The live view of keys: one look-up, no I/O."""

    def find(self, plaintext: str, /) -> KeyRecord | None: ...


class Access:
    """keys: None is open, for a router that listens on loopback only."""

    def __init__(self, keys: Keys | None) -> None:
        self._keys = keys

    def account(self, authorization: str | None, api_key: str | None) -> str:
        """The account of `Authorization: Bearer <key>`, or else of `x-api-key`.

        Raises Unauthenticated without telling more than that the key is not valid.
        """
        if self._keys is None:
            return LOCAL_ACCOUNT
        plaintext = _bearer(authorization) or api_key
        if not plaintext:
            raise Unauthenticated(
                "You didn't provide an API key: send it as 'Authorization: Bearer <key>'.",
                "MISSING_API_KEY",
            )
        record = self._keys.find(plaintext)
        if record is None:
            raise Unauthenticated("The API key provided is not valid.", "INVALID_API_KEY")
        return record.account

    def owner(self, authorization: str | None, api_key: str | None, peer: str) -> str:
        """Whose share of the memory a request takes: its account's, or where there is none its
        peer's, an address."""
        if self._keys is not None:
            try:
                return f"account {self.account(authorization, api_key)}"
            except Unauthenticated:
                pass
        return f"peer {peer}"


def _bearer(authorization: str | None) -> str:
    scheme, _, rest = (authorization or "").partition(" ")
    return rest.strip() if scheme.lower() == "bearer" else ""
