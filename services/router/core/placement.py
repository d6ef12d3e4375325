"""Where the router puts a step itself when no scheduler answers: prefix affinity, then load.

Steps whose first blocks are equal should meet on one server, because the prefix's KV is there. So
the server is chosen by rendezvous hashing over the head of the prompt (Thaler and Ravishankar,
"A name-based mapping scheme for rendezvous", 1996): every router picks the same one without
talking to another, and a server that leaves moves only its own prefixes. A server that is
clearly busier than the least busy one is passed over.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from libs.hashing import HASH_BYTES

HEAD_BLOCKS = 4
"""Blocks of the prompt that say where it goes: long enough to tell system prompts apart."""

LOAD_SLACK = 4
"""Steps that a server may have more than the least busy one and still be preferred."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A live server as this router sees it."""

    member_id: str
    load: int
    """Steps this router has on it now."""


def place(content_hashes: bytes, candidates: Sequence[Candidate]) -> Candidate | None:
    """The server for a prompt with these packed content hashes; None without candidates.

    Prompts shorter than a block have no hashes and go to the least busy server.
    """
    if not candidates:
        return None
    least = min(candidate.load for candidate in candidates)
    if not content_hashes:
        return min(candidates, key=lambda each: (each.load, each.member_id))
    head = content_hashes[: HEAD_BLOCKS * HASH_BYTES]
    eligible = [each for each in candidates if each.load <= least + LOAD_SLACK]
    return max(eligible, key=lambda each: (_weight(head, each.member_id), each.member_id))


def _weight(head: bytes, member_id: str) -> bytes:
    return hashlib.blake2b(
        head + member_id.encode(), key=b"impala.place.v1", digest_size=8
    ).digest()
