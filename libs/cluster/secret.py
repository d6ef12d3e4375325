"""What members of the cluster show each other: a secret that only readers of etcd can know.

It stands between a service's internal calls and the clients that reach the same port. Made by
whichever member comes first. Members watch it: one that an operator puts there takes effect at
once, and where it is deleted the first member to see that puts a fresh one.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
from collections.abc import Callable
from types import TracebackType
from typing import Self

from libs.cluster.client import EtcdClient
from libs.cluster.entry import Entry
from libs.cluster.errors import PASSING, OutcomeUnknown
from libs.cluster.keys import SECRET
from libs.cluster.patience import Patience
from libs.cluster.view import View
from libs.lasting import lasting

log = logging.getLogger(__name__)

METADATA_KEY = "x-impala-cluster-secret"
LEAST_CHARS = 32
OVERLAP_S = 60.0


async def cluster_secret(client: EtcdClient, fresh: str) -> str:
    """The cluster's secret; `fresh` (random, URL-safe, 32 bytes or more) becomes it where there is
    none yet. ClusterUnavailable if etcd does not answer."""
    if len(fresh) < LEAST_CHARS:
        raise ValueError(f"a cluster's secret needs at least {LEAST_CHARS} characters")
    while True:
        entry = await client.get(SECRET)
        if entry is not None:
            return entry.value.decode()
        try:
            await client.cas(SECRET, None, fresh.encode())
        except OutcomeUnknown:
            continue  # Reading tells whose it is, and members all use the one that is there.


def is_same(secret: str, shown: str) -> bool:
    """Compared in constant time, so that answers' times tell nothing."""
    return hmac.compare_digest(secret.encode(), shown.encode("utf-8", "surrogateescape"))


class ClusterSecret:
    """`async with ClusterSecret(client, fresh) as secret`: the secret as it is now.

    `fresh` makes a random one. In an outage of etcd the last one stays. For OVERLAP_S after a
    change the one before is let in too, because members hear of it one after the other.
    """

    def __init__(self, client: EtcdClient, fresh: Callable[[], str]) -> None:
        self._client = client
        self._fresh = fresh
        self._view = View(client, SECRET, _text, strip="")
        self._value = ""
        self._before = ""
        self._before_until = 0.0
        self._keeping: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.aclose()

    async def start(self) -> None:
        """ClusterUnavailable if etcd does not answer."""
        await self._view.start()
        self._value = await cluster_secret(self._client, self._fresh())
        self._keeping = lasting(self._keep(), "cluster secret")

    async def aclose(self) -> None:
        if self._keeping is not None:
            self._keeping.cancel()
            await asyncio.gather(self._keeping, return_exceptions=True)
        await self._view.aclose()

    @property
    def value(self) -> str:
        """What to show."""
        return self._value

    def lets_in(self, shown: str) -> bool:
        overlaps = asyncio.get_running_loop().time() < self._before_until
        return is_same(self._value, shown) or (overlaps and is_same(self._before, shown))

    async def _keep(self) -> None:
        patience = Patience("the cluster's secret", log)
        version = -1
        while True:
            version = await self._view.changed(version)
            secret = self._view.get(SECRET)
            try:
                if secret is None:
                    secret = await cluster_secret(self._client, self._fresh())
            except PASSING as error:
                version = -1
                await patience.rest(error)
            else:
                patience.over()
                self._take(secret)

    def _take(self, secret: str) -> None:
        if secret != self._value:
            self._before, self._value = self._value, secret
            self._before_until = asyncio.get_running_loop().time() + OVERLAP_S
            log.info("the cluster's secret has changed")


def _text(entry: Entry) -> str:
    return entry.value.decode("utf-8", "surrogateescape")
