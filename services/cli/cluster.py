"""Commands that speak to the cluster's etcd."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from libs.cluster.client import EtcdClient
from libs.cluster.errors import ClusterUnavailable
from services.cli.errors import CliError

Answer = TypeVar("Answer")


def with_etcd(endpoints: Sequence[str], work: Callable[[EtcdClient], Awaitable[Answer]]) -> Answer:
    """Does the work with a client; raises CliError if no endpoint answers."""

    async def connected() -> Answer:
        async with EtcdClient(endpoints) as client:
            return await work(client)

    try:
        return asyncio.run(connected())
    except ClusterUnavailable as error:
        raise CliError(
            f"etcd at {','.join(endpoints)} does not answer: start it, or give another --etcd."
        ) from error
