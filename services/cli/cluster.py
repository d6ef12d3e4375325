"""Commands that speak to the cluster's etcd."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from libs.cluster.client import EtcdClient
from libs.cluster.errors import ClusterUnavailable
from libs.rpc import ClientTls
from services.cli.errors import CliError

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class Etcds:
    """endpoints: host:port. tls: None = without."""

    endpoints: Sequence[str]
    tls: ClientTls | None


def with_etcd(etcd: Etcds, work: Callable[[EtcdClient], Awaitable[Answer]]) -> Answer:
    """Does the work with a client; raises CliError if no endpoint answers."""

    async def connected() -> Answer:
        async with EtcdClient(etcd.endpoints, tls=etcd.tls) as client:
            return await work(client)

    try:
        return asyncio.run(connected())
    except ClusterUnavailable as error:
        raise CliError(
            f"etcd at {','.join(etcd.endpoints)} does not answer: start it, or give another --etcd."
        ) from error
