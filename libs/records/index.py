"""The index object of a run: one fixed-width entry a request line, in file order.

Fixed width so that a leader can read any window of a large file's index with one range read.
"""

import struct
from collections.abc import Iterable, Iterator
from typing import NamedTuple

_ENTRY = struct.Struct("<QQQ16s8s")
ENTRY_BYTES = _ENTRY.size


class IndexEntry(NamedTuple):
    line: int
    """1-based physical line of the input file: the line's identity within the run."""
    offset: int
    """Byte offset of the line in the input object."""
    length: int
    """Bytes, without the newline."""
    prefix_key: bytes
    """16 bytes; lines whose bodies begin alike have equal keys and run together."""
    custom_id_hash: bytes
    """8 bytes."""


def pack_entries(entries: Iterable[IndexEntry]) -> bytes:
    return b"".join(_ENTRY.pack(*entry) for entry in entries)


def unpack_entries(data: bytes) -> Iterator[IndexEntry]:
    """Raises ValueError when `data` is not whole entries."""
    if len(data) % ENTRY_BYTES:
        raise ValueError(f"index of {len(data)} bytes is not a multiple of {ENTRY_BYTES}")
    for fields in _ENTRY.iter_unpack(data):
        yield IndexEntry(*fields)
