"""What members of the cluster show each other: a secret that only readers of etcd can know.

It stands between a service's internal calls and the clients that reach the same port. Made by
whichever member comes first; it does not change while members run (to change it, stop them and
delete the key).
"""

from __future__ import annotations

import hmac

from libs.cluster.client import EtcdClient
from libs.cluster.errors import OutcomeUnknown
from libs.cluster.keys import SECRET

METADATA_KEY = "x-impala-cluster-secret"
LEAST_CHARS = 32


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
