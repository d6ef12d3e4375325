"""Whether an object store and etcd are of one cluster.

Each has the same random mark. It is made once, in etcd first and as not yet given to a store, so
that a store is never marked that other members do not use:

    etcd: new:<mark>    store: -          just made: the store gets it
    etcd: <mark>        store: <mark>     they belong together
    etcd: <mark>        store: other, -   another cluster's store, or a folder that is not mounted
    etcd: -             store: <mark>     an etcd that is new, or lost its data
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from enum import Enum

from libs.cluster.client import EtcdClient
from libs.cluster.ops import Compare, Put
from libs.errors import StartupError
from libs.objects import ObjectNotFound, ObjectStore
from libs.records import keys

log = logging.getLogger(__name__)

_NEW = b"new:"


class Belonging(Enum):
    TOGETHER = "together"
    OTHER_STORE = "other store"
    OTHER_ETCD = "other etcd"


async def compare_marks(
    client: EtcdClient, objects: ObjectStore, token: Callable[[], str]
) -> Belonging:
    """Makes the mark where neither has one. Raises what etcd and store raise."""
    # Always in this order: what etcd calls given, the store has. It may just have been given.
    known, held = await _known(client), await _mark_of(objects)
    if known is None:
        if held is None:
            made = Put(keys.STORE_MARK, _NEW + token().encode())
            await client.txn([Compare.absent(keys.STORE_MARK)], [made])
        known, held = await _known(client), await _mark_of(objects)
    if known is None:
        return Belonging.OTHER_ETCD
    mark = known.removeprefix(_NEW)
    if held is None and known != mark:
        await objects.put_if_absent(keys.STORE_MARK_OBJECT, mark)
        held = await _mark_of(objects)
    if held != mark:
        return Belonging.OTHER_STORE
    if known != mark:
        given = Compare.value_is(keys.STORE_MARK, known)
        await client.txn([given], [Put(keys.STORE_MARK, mark)])
    return Belonging.TOGETHER


async def check_belonging(
    client: EtcdClient, objects: ObjectStore, token: Callable[[], str]
) -> None:
    """For a service's start. Raises StartupError for another cluster's store."""
    belonging = await compare_marks(client, objects, token)
    if belonging is Belonging.OTHER_STORE:
        raise StartupError(
            f"The object store {objects.url} (--objects) is not this cluster's: its object "
            f"'{keys.STORE_MARK_OBJECT}' is missing or is not what etcd knows. Give the store that "
            "the other routers and schedulers use."
        )
    if belonging is Belonging.OTHER_ETCD:
        log.warning(
            "etcd knows nothing of what is in the object store: it is new, or lost its data",
            extra={"store": objects.url},
        )


async def _known(client: EtcdClient) -> bytes | None:
    entry = await client.get(keys.STORE_MARK)
    return None if entry is None else entry.value


async def _mark_of(objects: ObjectStore) -> bytes | None:
    try:
        return await objects.get(keys.STORE_MARK_OBJECT)
    except ObjectNotFound:
        return None
