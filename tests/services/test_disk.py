"""No room on the disk, or a folder that cannot be written: clear words, and work goes on after."""

from __future__ import annotations

import contextlib
import resource
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import pytest
import pytest_asyncio

from libs.testing.etcd import EtcdProcess
from libs.testing.frozen import frozen, mounted
from libs.testing.waiting import eventually
from tests.services.cluster import ALL, WITHIN_S, Cluster
from tests.services.load import ENDPOINT, chat, finished, results, submit

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.xdist_group("services-disk"),
    pytest.mark.asyncio(loop_scope="module"),
]

LINES = 60


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Cluster]:
    """The objects lie on a mount of their own where that is allowed, so that they can be frozen."""
    folder: Path = tmp_path_factory.mktemp("disk") / "cluster"
    flags = {"modelserver": ["--step-s", "0.02", "--max-seqs", "4"]}
    with EtcdProcess() as etcd, mounted(folder / "objects"):
        async with Cluster(folder, etcd.endpoint, flags) as cluster:
            await cluster.up(*ALL)
            yield cluster
            assert cluster.complaints() == {}


@pytest_asyncio.fixture(loop_scope="module")
async def client(cluster: Cluster) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(
        trust_env=False, timeout=30, base_url=cluster["router"].url
    ) as client:
        yield client


@contextlib.contextmanager
def full_for(*pids: int) -> Iterator[None]:
    """Every write to a file fails in these processes, their logs among them."""
    for pid in pids:
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
    try:
        yield
    finally:
        for pid in pids:
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)


async def upload(client: httpx.AsyncClient) -> httpx.Response:
    return await client.post(
        "/v1/files", files={"file": ("a.jsonl", b"{}\n")}, data={"purpose": "batch"}
    )


async def test_an_upload_to_a_full_store_is_told_what_is_full(
    cluster: Cluster, client: httpx.AsyncClient
) -> None:
    with full_for(cluster["router"].pid):
        answer = await upload(client)
        assert (await client.post(ENDPOINT, json=chat("Hi", 2))).status_code == 200
    assert answer.status_code == 507, answer.text
    error = answer.json()["error"]
    assert error["code"] == "store_full"
    assert error["message"].startswith("The object store is full")
    assert (await upload(client)).is_success


async def test_an_upload_to_a_store_that_cannot_be_written_is_told_so(
    cluster: Cluster, client: httpx.AsyncClient
) -> None:
    assert (await upload(client)).is_success
    async with frozen(cluster.objects):
        answer = await upload(client)
        assert (await client.post(ENDPOINT, json=chat("Hi", 2))).status_code == 200
    assert answer.status_code == 503, answer.text
    assert answer.json()["error"]["code"] == "read_only"
    assert (await upload(client)).is_success


@pytest.mark.parametrize("fault", ["full", "frozen"])
async def test_a_running_batch_waits_and_goes_on(
    cluster: Cluster, client: httpx.AsyncClient, fault: str
) -> None:
    """Nothing is recorded meanwhile, and nothing is lost or given up for it."""
    batch = await submit(client, LINES, 16)

    async def begun() -> bool:
        found = (await client.get(f"/v1/batches/{batch}")).json()
        return bool(found["request_counts"]["completed"] >= 3)

    await eventually(begun, within_s=WITHIN_S)
    async with contextlib.AsyncExitStack() as stack:
        if fault == "full":
            stack.enter_context(full_for(cluster["scheduler"].pid, cluster["router"].pid))
        else:
            await stack.enter_async_context(frozen(cluster.objects))
        await eventually(lambda: _engine_is_idle(client), within_s=WITHIN_S)
        found = (await client.get(f"/v1/batches/{batch}")).json()
        assert found["status"] in ("in_progress", "finalizing"), found
        assert found["request_counts"]["completed"] < LINES
    found = await finished(client, batch, WITHIN_S)
    assert await results(client, found) == sorted(f"l{at}" for at in range(LINES))


async def _engine_is_idle(client: httpx.AsyncClient) -> bool:
    """A single request is answered; by then the batch's lines have run as far as they can."""
    answers = [(await client.post(ENDPOINT, json=chat(f"{at}", 40))).is_success for at in range(3)]
    return all(answers)


@pytest.mark.parametrize("name", ALL)
async def test_a_log_that_cannot_be_written_stops_nothing(cluster: Cluster, name: str) -> None:
    """Every line of it fails: /dev/full has no room."""
    member = cluster[f"{name}-mute"]
    with open("/dev/full", "wb") as log:  # noqa: ASYNC230  # a device, opened at once
        process = cluster.spawn(member, ("--log-level", "debug"), log, {})
    member.process, member.starts = process, 1
    member.log.touch()
    await cluster.ready(member.name)
    assert await cluster.stop(member.name) == 0


@pytest.mark.parametrize("name", ["router", "scheduler"])
async def test_an_object_store_that_cannot_be_made_is_one_sentence(
    cluster: Cluster, name: str
) -> None:
    member = cluster[f"{name}-b"]
    with member.log.open("wb") as log:
        process = cluster.spawn(member, ("--objects", "/proc/impala"), log, {})
    assert process.wait(WITHIN_S) == 1
    assert "Traceback" not in member.said()
    assert "/proc/impala" in member.said().splitlines()[-1]
