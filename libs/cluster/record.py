"""A JSON record in etcd: `{"v": schema version, "w": token of the write, "record": {...}}`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import orjson

from libs.cluster.entry import Entry
from libs.cluster.errors import RecordUnreadable

T = TypeVar("T")
Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Record(Generic[T]):
    """`mod_revision` changes with every write; `create_revision` orders records by creation."""

    id: str
    value: T
    mod_revision: int
    create_revision: int


@dataclass(frozen=True, slots=True)
class RecordCodec(Generic[T]):
    """`encode` gives the JSON object of a value; `decode` takes it back and gets, as its second
    argument, the schema version it was written with (<= `version`). Newer ones are refused."""

    encode: Callable[[T], Json]
    decode: Callable[[Json, int], T]
    version: int = 1

    def dump(self, value: T, token: str) -> bytes:
        document = {"v": self.version, "w": token, "record": self.encode(value)}
        return orjson.dumps(document, option=orjson.OPT_NON_STR_KEYS)

    def load(self, entry: Entry, record_id: str) -> Record[T]:
        """RecordUnreadable names the key and what is wrong with it."""
        try:
            document = orjson.loads(entry.value)
            version = document["v"]
            if version > self.version:
                raise ValueError(f"schema version {version} is newer than {self.version}")
            value = self.decode(document["record"], version)
        except (ValueError, KeyError, TypeError) as error:
            raise RecordUnreadable(f"{entry.key} cannot be read: {error!r}") from error
        return Record(record_id, value, entry.mod_revision, entry.create_revision)


def token_of(entry: Entry) -> str | None:
    """The token of the write that left this entry; None in foreign bytes."""
    try:
        token = orjson.loads(entry.value)["w"]
    except (ValueError, KeyError, TypeError):
        return None
    return token if isinstance(token, str) else None


JSON_CODEC: RecordCodec[Json] = RecordCodec(encode=dict, decode=lambda record, _: record)
