"""Whether etcd lets this process in: who is refused can neither register, lead nor record."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from libs.cluster.client import EtcdClient
from libs.cluster.errors import ClusterError, PermissionRefused
from libs.cluster.keys import ROOT
from libs.cluster.patience import Patience

log = logging.getLogger(__name__)

ASK_EVERY_S = 2.0


async def follow_access(
    client: EtcdClient, tell: Callable[[bool], None], *, every_s: float = ASK_EVERY_S
) -> None:
    """Tells of each change, having begun with access. Streams that were open stay so when access is
    taken away, so it is asked for. An etcd that is away is no news. Until cancelled."""
    patience = Patience("access to etcd", log)
    had = True
    while True:
        await asyncio.sleep(every_s)
        try:
            await client.get(ROOT)
            has = True
            patience.over()
        except PermissionRefused as error:
            has = False
            await patience.rest(error)
        except ClusterError:
            continue
        if has != had:
            had = has
            tell(has)
