"""One key of etcd as read, and a list of them."""

from __future__ import annotations

from dataclasses import dataclass

from etcd.api.mvccpb import kv_pb2


@dataclass(frozen=True, slots=True)
class Entry:
    """`mod_revision` changes with every write and never comes back, so it is what a compare-and-set
    compares. `create_revision` stays for the key's life. `lease` is 0 without one."""

    key: str
    value: bytes
    mod_revision: int
    create_revision: int
    lease: int = 0


@dataclass(frozen=True, slots=True)
class Listing:
    """Entries as of one `revision` of the whole store. `more`: a limit cut the list short."""

    entries: tuple[Entry, ...]
    revision: int
    more: bool = False


def entry_of(kv: kv_pb2.KeyValue) -> Entry:
    return Entry(
        key=kv.key.decode(),
        value=kv.value,
        mod_revision=kv.mod_revision,
        create_revision=kv.create_revision,
        lease=kv.lease,
    )


def prefix_end(prefix: str) -> bytes:
    """The first key after all that begin with `prefix` (not empty; UTF-8 has no byte 0xFF)."""
    if not prefix:
        raise ValueError("a prefix must not be empty")
    raw = prefix.encode()
    return raw[:-1] + bytes([raw[-1] + 1])
