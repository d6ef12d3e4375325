"""Commands that speak to the cluster's etcd."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from libs.cluster.client import EtcdClient
from libs.cluster.errors import ClusterUnavailable, PermissionRefused
from libs.cluster.password import password_in
from libs.rpc import ClientTls
from services.cli.errors import CliError

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class Etcds:
    """endpoints: host:port. tls: None = without. user: empty = none, or the certificate's name."""

    endpoints: Sequence[str]
    tls: ClientTls | None
    user: str = ""
    password_file: Path | None = None

    def client(self) -> EtcdClient:
        file = self.password_file
        return EtcdClient(
            self.endpoints,
            tls=self.tls,
            user=self.user or None,
            password=None if file is None else password_in(file),
        )


def with_etcd(etcd: Etcds, work: Callable[[EtcdClient], Awaitable[Answer]]) -> Answer:
    """Does the work with a client; raises CliError if no endpoint answers, or none lets us in."""

    async def connected() -> Answer:
        async with etcd.client() as client:
            return await work(client)

    try:
        return asyncio.run(connected())
    except PermissionRefused as error:
        raise CliError(f"{error}.") from error
    except ClusterUnavailable as error:
        raise CliError(
            f"etcd at {','.join(etcd.endpoints)} does not answer: start it, or give another --etcd."
        ) from error
