"""One registered member of a service, and its JSON in etcd."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from libs.cluster.entry import Entry
from libs.cluster.errors import RecordUnreadable

SCHEMA = 1


@dataclass(frozen=True, slots=True)
class Member:
    """`incarnation` names one life of the process, `epoch` one registration (the create revision of
    the key, monotone): a member that was thought dead and came back has a new epoch, and what was
    given to an older one is no longer its own. `info` is the service's: addresses, model, load.
    """

    id: str
    incarnation: str
    epoch: int
    info: Mapping[str, Any] = field(default_factory=dict)


def encode_member(incarnation: str, info: Mapping[str, Any]) -> bytes:
    return orjson.dumps({"v": SCHEMA, "incarnation": incarnation, "info": dict(info)})


def decode_member(entry: Entry) -> Member:
    try:
        document = orjson.loads(entry.value)
        return Member(
            id=entry.key.rsplit("/", 1)[-1],
            incarnation=document["incarnation"],
            epoch=entry.create_revision,
            info=document["info"],
        )
    except (ValueError, KeyError, TypeError) as error:
        raise RecordUnreadable(f"{entry.key} is not a member record: {error}") from error
