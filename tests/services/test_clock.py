"""The wall clock of one process jumps an hour, forth or back, under a batch and single requests."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio

from libs.testing.clock_shift import env_for, shift
from libs.testing.etcd import EtcdProcess
from libs.testing.waiting import eventually
from tests.services.cluster import WITHIN_S, Cluster
from tests.services.load import Load, finished, loaded, results, submit

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.xdist_group("services-clock"),
    pytest.mark.asyncio(loop_scope="module"),
]

HOUR = 3600.0
MEMBERS = ("kvstore", "leap", "scheduler", "modelserver", "router")
LINES, TOKENS = 40, 16
SLACK_S = 60.0
"""Less than an hour."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Cluster]:
    """Every member follows a clock of its own, in its folder."""
    folder: Path = tmp_path_factory.mktemp("clock")
    with EtcdProcess() as etcd:
        flags = {"modelserver": ["--step-s", "0.02", "--max-seqs", "8"]}
        async with Cluster(folder / "cluster", etcd.endpoint, flags) as cluster:
            for name in MEMBERS:
                cluster.start(name, env=env_for(clock_of(cluster, name)))
            for name in MEMBERS:
                await cluster.ready(name)
            await cluster.make_job("router")
            yield cluster
            assert cluster.complaints() == {}


def clock_of(cluster: Cluster, name: str) -> Path:
    return cluster.folder / f"{name}.clock"


@pytest.mark.parametrize("seconds", [HOUR, -HOUR], ids=["forth", "back"])
@pytest.mark.parametrize("name", ["router", "scheduler", "modelserver", "leap"])
async def test_nothing_is_refused_ended_or_booked_for_it(
    cluster: Cluster, name: str, seconds: float
) -> None:
    load = Load(TOKENS)
    began = time.monotonic()
    async with (
        httpx.AsyncClient(trust_env=False, timeout=30, base_url=cluster["router"].url) as client,
        loaded([cluster["router"]], load),
    ):
        batch = await submit(client, LINES, TOKENS)

        async def at_work() -> bool:
            counts = (await client.get(f"/v1/batches/{batch}")).json()["request_counts"]
            return bool(counts["completed"] >= 3) and load.least >= 1

        await eventually(at_work, within_s=WITHIN_S)
        shift(clock_of(cluster, name), seconds)
        try:
            before = dict(load.answered)
            found = await finished(client, batch, WITHIN_S)
            await eventually(
                lambda: all(load.answered[kind] > count + 1 for kind, count in before.items()),
                within_s=WITHIN_S,
            )
            assert await results(client, found) == sorted(f"l{at}" for at in range(LINES))
            took = time.monotonic() - began
            run = await _run_of(client, batch)
            _check_run(run, took)
        finally:
            shift(clock_of(cluster, name), 0)
    assert load.failures == []


async def _run_of(client: httpx.AsyncClient, batch: str) -> dict[str, Any]:
    answer = await client.get("/imp/v1/runs", params={"batch_id": batch})
    (run,) = [run for run in answer.json()["data"] if run["batch_id"] == batch]
    return dict(run)


def _check_run(run: dict[str, Any], took: float) -> None:
    """No hour and nothing negative in what was booked, and no end before its beginning."""
    ledger, tasks = run["ledger"], run["ledger"]["task_completion_s"]
    assert 0 < ledger["busy_engine_s"] <= ledger["wall_engine_s"] < took + SLACK_S
    assert 0 < tasks["p50"] <= tasks["p99"] < took + SLACK_S
    assert tasks["count"] == LINES
    assert run["created_at"] <= run["started_at"] <= run["ended_at"]
