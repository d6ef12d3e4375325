"""One cluster of service processes beside an etcd that a test may break, and work for it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx

from libs.cluster.client import EtcdClient
from libs.cluster.election import Election, Leader
from libs.records import keys
from libs.testing.waiting import eventually
from tests.services.cluster import MODEL, Cluster
from tests.services.load import finished, results

WITHIN_S = 90.0
FLEET = f"{MODEL}.float32"
ELECTION_TTL_S = 2
MEMBER_TTL_S = 10.0
"""libs.cluster.membership's."""
MEMBERS = ("leap", "scheduler-1", "scheduler-2", "modelserver-1", "modelserver-2", "router")


@asynccontextmanager
async def running(
    folder: Path, etcd: str, *flags: str, members: tuple[str, ...] = MEMBERS
) -> AsyncIterator[Cluster]:
    """`etcd`: endpoints. `flags` are each service's. Whatever happened, no service may have failed
    in a way that it did not foresee."""
    every = dict.fromkeys(("leap", "scheduler", "modelserver", "router"), flags)
    every["scheduler"] = (*flags, "--election-ttl-s", str(ELECTION_TTL_S))
    every["modelserver"] = (*flags, "--step-s", "0.02", "--max-seqs", "4")
    async with Cluster(folder, etcd, every) as cluster:
        await cluster.up(*members)
        yield cluster
        assert cluster.complaints() == {}


@asynccontextmanager
async def client_of(cluster: Cluster, router: str = "router") -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(
        trust_env=False, timeout=60, base_url=cluster[router].url
    ) as client:
        yield client


async def leader(client: EtcdClient) -> Leader:
    """Who leads the fleet; waits until someone does."""
    found: list[Leader] = []

    async def led() -> bool:
        now = await Election(client, keys.fleet_election(FLEET), "observer").leader()
        found[:] = [now] if now is not None else []
        return now is not None

    await eventually(led, within_s=WITHIN_S)
    return found[0]


async def counts(client: httpx.AsyncClient, batch: str) -> dict[str, int]:
    found = await client.get(f"/v1/batches/{batch}")
    return dict(found.json()["request_counts"]) if found.is_success else {}


async def completed(client: httpx.AsyncClient, batch: str, least: int) -> None:
    """Waits until so many lines are recorded."""

    async def enough() -> bool:
        return (await counts(client, batch)).get("completed", 0) >= least

    await eventually(enough, within_s=WITHIN_S)


async def each_line_once(client: httpx.AsyncClient, batch: str, lines: int) -> dict[str, Any]:
    """The batch at its end: completed, every custom_id once."""
    found = await finished(client, batch, within_s=2 * WITHIN_S)
    assert await results(client, found) == sorted(f"l{at}" for at in range(lines))
    assert found["request_counts"] == {"total": lines, "completed": lines, "failed": 0}
    return found


async def passes(seconds: float) -> None:
    """How long something lasts is what is tested here, not a wait for luck."""
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    await eventually(lambda: loop.time() >= end, within_s=seconds + WITHIN_S)


def epochs_of_segments(record: bytes) -> list[int]:
    """By which leaders' epochs a run's segments were written."""
    run = json.loads(record)
    return [int(each["object"].rsplit("/", 1)[1].partition("-")[0]) for each in run["segments"]]
