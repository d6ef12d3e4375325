"""etcd's quota used up under a batch and chats: what runs goes on, what is new is told to come
back, and once there is room nothing is forgotten."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from libs.cluster.client import EtcdClient
from libs.cluster.errors import StoreFull
from libs.testing.etcd import EtcdProcess
from libs.testing.waiting import eventually
from tests.cluster_state.setup import (
    ELECTION_TTL_S,
    WITHIN_S,
    client_of,
    completed,
    each_line_once,
    leader,
    passes,
    running,
)
from tests.services.load import Load, loaded, submit

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.xdist_group("cluster-state"),
]
TOKENS = 8
QUOTA = 16 << 20
BALLAST = "/impala/test/ballast"


async def fill(client: EtcdClient) -> None:
    """Until not even a small write is taken."""
    size = 1 << 20
    while size:
        try:
            await client.put(BALLAST, bytes(size))
        except StoreFull:
            size //= 64


async def test_a_full_store(tmp_path: Path) -> None:
    load = Load(TOKENS)
    with EtcdProcess(extra=(f"--quota-backend-bytes={QUOTA}",)) as etcd:
        async with (
            running(tmp_path / "c", etcd.endpoint) as cluster,
            client_of(cluster) as client,
            EtcdClient([etcd.endpoint]) as direct,
            loaded([cluster["router"]], load),
        ):
            batch = await submit(client, 150, TOKENS)
            await completed(client, batch, 8)
            led = await leader(direct)
            await fill(direct)
            refused = await client.post("/imp/v1/jobs", json={"model": "scripted"})
            assert refused.status_code == 503 and refused.headers["retry-after"] == "1"
            known = await client.get(f"/v1/batches/{batch}")
            assert known.is_success, "what is known is read"
            answered = load.least
            await passes(2 * ELECTION_TTL_S)
            await eventually(lambda: load.least > answered + 1, within_s=WITHIN_S)
            assert await leader(direct) == led, "leases are renewed without a write"
            entry = await direct.get(BALLAST)
            assert entry is not None
            await direct.delete(BALLAST)
            now = (await direct.list(BALLAST)).revision
            await asyncio.to_thread(etcd.reclaim_space, now)
            await each_line_once(client, batch, 150)
            await cluster.make_job("router")
            assert await leader(direct) == led
    assert load.failures == []
