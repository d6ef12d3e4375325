"""Batches of real services on S3, from upload to sweep, while the store fails in all ways."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Any

import httpx
import msgspec
import pytest
import pytest_asyncio

from libs.cluster.client import EtcdClient
from libs.objects import ObjectStore, digest_of, open_store
from libs.records import keys
from libs.records.batch import BatchRecord, FileRecord, RunRecord
from libs.testing.etcd import EtcdProcess
from libs.testing.http_faults import HttpFaults, Rule
from libs.testing.s3 import KEYS, S3Process, environment
from libs.testing.waiting import eventually
from tests.services.cluster import ALL, WITHIN_S, Cluster
from tests.services.load import finished, results, submit

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.xdist_group("objects-s3"),
    pytest.mark.asyncio(loop_scope="module"),
]

URL = "s3://bucket/cluster"
LINES, TOKENS = 40, 8
NAMES = sorted(f"l{at}" for at in range(LINES))
GRACE_S = 3.0


class Setup:
    """The services, the way to their store, and the store itself."""

    def __init__(
        self, cluster: Cluster, proxy: HttpFaults, store: ObjectStore, etcd: EtcdClient
    ) -> None:
        self.cluster = cluster
        self.proxy = proxy
        self.store = store
        self.etcd = etcd
        self.client = httpx.AsyncClient(trust_env=False, timeout=60, base_url=cluster["router"].url)

    async def record(self, key: str, kind: type[Any]) -> Any:
        entry = await self.etcd.get(key)
        assert entry is not None, key
        return msgspec.json.decode(entry.value, type=kind)

    async def run_of(self, batch: str) -> RunRecord:
        of_batch = await self.record(keys.batch("local", batch), BatchRecord)
        run: RunRecord = await self.record(keys.run(of_batch.run_id), RunRecord)
        return run

    async def recorded(self, batch: str, lines: int) -> None:
        async def are() -> bool:
            found = (await self.client.get(f"/v1/batches/{batch}")).json()
            return bool(found["request_counts"]["completed"] >= lines)

        await eventually(are, within_s=WITHIN_S)

    async def stored(self, folder: str) -> list[str]:
        return [info.key for info in await self.store.list(folder)]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def setup(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Setup]:
    """The collector of garbage is in a hurry all the time."""
    with EtcdProcess() as etcd, S3Process() as s3, pytest.MonkeyPatch.context() as patch:
        async with HttpFaults(s3.port) as proxy, EtcdClient([etcd.endpoint]) as client:
            for name, value in environment(proxy.url).items():
                patch.setenv(name, value)
            on_s3 = ["--objects", URL]
            hurry = ["--sweep-s", "1", "--garbage-grace-s", f"{GRACE_S}", "--keep-results-s", "5"]
            flags = {
                "router": [*on_s3, *hurry],
                "scheduler": [*on_s3, "--election-ttl-s", "3"],
                "modelserver": ["--step-s", "0.02", "--max-seqs", "4"],
            }
            folder = tmp_path_factory.mktemp("s3") / "cluster"
            async with Cluster(folder, etcd.endpoint, flags) as cluster:
                await cluster.up(*ALL)
                store = open_store(URL, KEYS | {"endpoint": s3.endpoint})
                setup = Setup(cluster, proxy, store, client)
                yield setup
                await setup.client.aclose()
                assert cluster.complaints() == {}


@pytest.fixture(autouse=True)
def without_faults(setup: Setup) -> None:
    setup.proxy.clear()


async def test_a_batch_goes_its_whole_way_on_s3(setup: Setup) -> None:
    batch = await submit(setup.client, LINES, TOKENS)
    path = f"/imp/v1/batches/{batch}/results"
    async with setup.client.stream("GET", path, params={"follow": "true"}) as answer:
        followed = [json.loads(line)["custom_id"] async for line in answer.aiter_lines()]
    assert sorted(followed) == NAMES
    found = await finished(setup.client, batch)
    assert await results(setup.client, found) == NAMES
    run = await setup.run_of(batch)
    for ref in run.segments:
        data = await setup.store.get(ref.object)
        assert (len(data), digest_of(data)) == (ref.bytes, ref.digest)
    assert digest_of(await setup.store.get(run.index_object)) == run.index_digest
    for file_id in (found["output_file_id"], found["input_file_id"]):
        record = await setup.record(keys.file("local", file_id), FileRecord)
        data = await setup.store.get(keys.file_object("local", file_id))
        assert (len(data), digest_of(data)) == (record.bytes, record.digest)
        assert (await setup.client.delete(f"/v1/files/{file_id}")).is_success
        assert not await setup.store.exists(keys.file_object("local", file_id))


async def test_a_large_file_goes_up_in_parts_and_comes_back(setup: Setup) -> None:
    content = b"0123456789abcdef" * (21 << 16)
    parts = setup.proxy.count("PUT", "partNumber")
    made = await setup.client.post(
        "/v1/files", files={"file": ("big", content)}, data={"purpose": "user_data"}
    )
    assert made.is_success, made.text
    assert setup.proxy.count("PUT", "partNumber") >= parts + 2
    setup.proxy.add(Rule(method="GET", cut="response", cut_after=9 << 20, times=1))
    got = await setup.client.get(f"/v1/files/{made.json()['id']}/content")
    assert got.content == content


FAULTS: dict[str, Sequence[Rule]] = {
    "errors": [Rule(answer=500, times=12), Rule(answer=503, times=12)],
    "slow": [Rule(delay_s=0.2, bytes_per_s=30_000)],
    "reads cut": [Rule(method="GET", cut="response", cut_after=40, times=8)],
    "writes cut": [Rule(method="PUT", cut="request", cut_after=40, times=8)],
    "answers lost": [
        Rule(method="PUT", lose_answer=True, times=8),
        Rule(method="POST", lose_answer=True, times=2),
    ],
    "bits flipped": [
        Rule(method="GET", contains="/index", flip=True, times=1),
        Rule(method="GET", contains="/segments/", flip=True, times=1),
    ],
}


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_batch_completes_whatever_the_store_does(setup: Setup, fault: str) -> None:
    rules = [setup.proxy.add(replace(rule)) for rule in FAULTS[fault]]
    for _ in range(10):  # an upload may be refused, and is then asked for again
        try:
            batch = await submit(setup.client, LINES, TOKENS)
            break
        except AssertionError:
            continue
    found = await finished(setup.client, batch)
    read = await setup.client.get(f"/imp/v1/batches/{batch}/results")
    setup.proxy.clear()
    assert await results(setup.client, found) == NAMES
    assert sorted(json.loads(line)["custom_id"] for line in read.text.splitlines()) == NAMES
    assert any(rule.hits for rule in rules)
    run = await setup.run_of(batch)
    named = [ref.object for ref in run.segments]
    assert len(set(named)) == len(named)
    # What was written twice would be there without a name.
    assert await setup.stored(f"runs/{run.id}/segments") == sorted(named)


async def test_an_upload_that_the_store_refuses_is_there_not_at_all(setup: Setup) -> None:
    before = await setup.stored("files")
    setup.proxy.add(Rule(method="PUT", answer=500))
    answer = await setup.client.post(
        "/v1/files", files={"file": ("in", b"{}\n" * (6 << 20))}, data={"purpose": "user_data"}
    )
    setup.proxy.clear()
    assert answer.status_code == 503, answer.text
    assert int(answer.headers["retry-after"]) >= 1
    assert answer.json()["error"]["code"] == "store_unavailable"
    assert "s3" not in answer.json()["error"]["message"]
    assert set(await setup.stored("files")) <= set(before)
    listed = (await setup.client.get("/v1/files")).json()["data"]
    assert "in" not in [each["filename"] for each in listed]


async def test_a_leader_killed_while_the_store_is_away_loses_nothing(setup: Setup) -> None:
    batch = await submit(setup.client, LINES, 32)
    await setup.recorded(batch, 5)
    away = setup.proxy.add(Rule(answer=503))
    hits = away.hits
    await eventually(lambda: away.hits > hits + 3, within_s=WITHIN_S)
    setup.cluster.signal("scheduler", signal.SIGKILL)
    await setup.cluster.ended("scheduler")
    setup.proxy.clear()
    setup.cluster.start("scheduler")
    await setup.cluster.ready("scheduler")
    found = await finished(setup.client, batch)
    assert await results(setup.client, found) == NAMES


async def test_garbage_goes_and_what_is_needed_stays(setup: Setup) -> None:
    batch = await submit(setup.client, LINES, TOKENS)
    found = await finished(setup.client, batch)
    run = await setup.run_of(batch)
    strays = [
        keys.file_object("local", "file-never-recorded"),
        keys.segment_object(run.id, 1, 1),
        keys.index_object("run-of-nobody"),
    ]
    for key in strays:
        await setup.store.put(key, b"x")

    async def are_gone() -> bool:
        """With the results of a run that ended long ago, whose files have them."""
        kept = await setup.stored("runs")
        left = [key for key in kept if key.startswith(f"runs/{run.id}/")]
        return not left and not {*strays} & {*kept, *await setup.stored("files")}

    await eventually(are_gone, within_s=WITHIN_S)
    assert await results(setup.client, found) == NAMES
    read = await setup.client.get(f"/imp/v1/batches/{batch}/results")
    assert sorted(json.loads(line)["custom_id"] for line in read.text.splitlines()) == NAMES


@pytest.mark.parametrize("name", ["router", "scheduler"])
@pytest.mark.parametrize(
    ("url", "env", "told"),
    [
        ("s3://no-such-bucket/x", {}, "no bucket 'no-such-bucket'"),
        (URL, {"AWS_ENDPOINT_URL": "127.0.0.1:9"}, "AWS_ENDPOINT_URL"),
    ],
)
async def test_a_service_with_a_wrong_store_ends_with_one_sentence(
    setup: Setup, name: str, url: str, env: dict[str, str], told: str
) -> None:
    member = setup.cluster[f"{name}-wrong"]
    with member.log.open("wb") as log:
        process = setup.cluster.spawn(member, ("--objects", url), log, env)
    assert await asyncio.to_thread(process.wait, WITHIN_S) == 1
    said = member.said()
    assert "Traceback" not in said
    assert told in said.splitlines()[-1]
