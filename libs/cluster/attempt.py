"""A compare-and-set whose outcome is always found out, or honestly unknown.

Every write has a token of its own in the value. If the answer is lost, the write is sent again
under the same compare: the first one to be applied breaks the compare for the others, so it happens
at most once. Then a refused compare has two readings, and the token tells them apart: another
writer was first, or an attempt of ours was, in which case the token is found in the key's present
value or, if others have written since, in its history.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from libs.cluster.client import EtcdClient
from libs.cluster.entry import Entry
from libs.cluster.errors import ClusterUnavailable, Compacted, OutcomeUnknown
from libs.cluster.ops import Compare, Get, Op, Put

ATTEMPTS = 5
RETRY_S = 0.1


@dataclass(frozen=True, slots=True)
class Applied:
    revision: int


@dataclass(frozen=True, slots=True)
class Refused:
    """Nothing was written; `found` is the key's entry at that moment."""

    found: Entry | None


async def write_once(
    client: EtcdClient,
    put: Put,
    is_ours: Callable[[Entry], bool],
    *,
    expected: int,
    guard: Compare | None,
    also: Sequence[Op] = (),
) -> Applied | Refused:
    """Writes if the key was last written at revision `expected` (0: if it does not exist) and the
    guard holds, and `also` with it in the same transaction: one key with a token makes a write of
    many keys exactly once. `is_ours` looks for this write's token. A create that is in doubt must
    not be raced by a delete of the same key: nobody knows the id yet."""
    compares = [Compare.mod(put.key) == expected, *([guard] if guard else [])]
    doubt: OutcomeUnknown | None = None
    for _ in range(ATTEMPTS):
        try:
            result = await client.txn(compares, then=[put, *also], else_=[Get(put.key)])
        except OutcomeUnknown as error:
            doubt = error
        except ClusterUnavailable as error:
            if doubt is None:
                raise
            raise doubt from error
        else:
            if result.succeeded:
                return Applied(result.revision)
            found = result.entry()
            ours = await _find_ours(client, found, is_ours, expected, doubt) if doubt else None
            return Applied(ours.mod_revision) if ours else Refused(found)
        await asyncio.sleep(RETRY_S)
    assert doubt is not None
    raise doubt


async def _find_ours(
    client: EtcdClient,
    found: Entry | None,
    is_ours: Callable[[Entry], bool],
    since: int,
    doubt: OutcomeUnknown,
) -> Entry | None:
    """Walks back from the present entry to revision `since`."""
    if found is None and since:
        # Deleted: our write may have come before that.
        raise doubt
    entry = found
    try:
        while entry is not None and entry.mod_revision > since:
            if is_ours(entry):
                return entry
            entry = await client.get(entry.key, revision=entry.mod_revision - 1)
    except (Compacted, ClusterUnavailable) as error:
        raise doubt from error
    return None
