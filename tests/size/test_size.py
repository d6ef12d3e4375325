"""Large files and many batches on a real cluster, whose model answers by a script."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import openai
import pytest
import pytest_asyncio

from bench.lib.processes import Sampler
from services.router.tests.tiny_model import make_tiny_model
from tests.e2e.batches import ENDPOINT, ended
from tests.robustness.cluster import MODEL, Cluster, Shape

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("size"), pytest.mark.timeout(600)]

MOST_BYTES = 300_000_000
"""That a router or a scheduler may hold, whatever it is given."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Cluster]:
    model = tmp_path_factory.mktemp("size") / "model"
    make_tiny_model(model)
    shape = Shape(
        routers=1,
        schedulers=1,
        modelservers=1,
        step_s=0.0,
        model=str(model),
        kv_bytes="64MiB",
        max_seqs=64,
        proxied=False,
    )
    async with Cluster(shape) as cluster:
        yield cluster


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(cluster: Cluster) -> AsyncIterator[openai.AsyncOpenAI]:
    url = next(iter(cluster.http.values()))
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        yield client


def line(custom_id: str, size: int) -> str:
    """One request, of `size` bytes: blanks between two fields mean nothing in JSON."""
    body = {
        "model": MODEL,
        "messages": [{"role": "user", "content": f"Step {custom_id}"}],
        "max_tokens": 1,
        "temperature": 0,
        "ignore_eos": True,
    }
    text = json.dumps({"custom_id": custom_id, "method": "POST", "url": ENDPOINT, "body": body})
    return text[0] + " " * (size - len(text) - 1) + text[1:] + "\n"


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(
    ("lines", "line_bytes", "largest"),
    [(1_790, 100_000, 20_000_000), (50_000, 400, 400)],
    ids=["a file of 199 MB with a line of 20 MB", "50,000 lines"],
)
async def test_memory_does_not_grow_with_a_file_and_each_line_is_answered_once(
    cluster: Cluster,
    client: openai.AsyncOpenAI,
    tmp_path: Path,
    lines: int,
    line_bytes: int,
    largest: int,
) -> None:
    file = tmp_path / "input.jsonl"
    with file.open("w") as out:
        for at in range(lines):
            out.write(line(f"line-{at}", largest if at == lines // 2 else line_bytes))
    with Sampler(cluster.pids) as sampler:
        uploaded = await client.files.create(file=file, purpose="batch")
        assert uploaded.bytes == file.stat().st_size
        batch = await client.batches.create(
            input_file_id=uploaded.id, endpoint=ENDPOINT, completion_window="24h"
        )
        batch = await ended(client, batch, within_s=500)
        assert batch.output_file_id is not None
        names: Counter[str] = Counter()
        async with client.files.with_streaming_response.content(batch.output_file_id) as answer:
            async for text in answer.iter_lines():
                names[json.loads(text)["custom_id"]] += 1
    assert (batch.status, batch.error_file_id) == ("completed", None)
    assert names == Counter(f"line-{at}" for at in range(lines))
    held = {name: seen.peak_rss for name, seen in sampler.seen.items()}
    assert all(
        held[name] < MOST_BYTES for name in held if name.startswith(("router", "scheduler"))
    ), held


@pytest.mark.asyncio(loop_scope="module")
async def test_a_thousand_batches_are_listed_page_by_page_each_once_newest_first(
    client: openai.AsyncOpenAI,
) -> None:
    count, at_once = 1_000, asyncio.Semaphore(16)
    file = await client.files.create(file=("in.jsonl", line("only", 300).encode()), purpose="batch")

    async def create() -> str:
        async with at_once:
            batch = await client.batches.create(
                input_file_id=file.id, endpoint=ENDPOINT, completion_window="24h"
            )
            return batch.id

    created = await asyncio.gather(*(create() for _ in range(count)))
    assert len(set(created)) == count
    for limit in (100, 7):
        listed = []
        async for batch in client.batches.list(limit=limit):
            listed.append(batch)
            if len(listed) == count // 2:
                # What is created meanwhile stands before the first page: nothing moves behind it.
                await create()
        mine = [batch.id for batch in listed if batch.id in set(created)]
        assert len(mine) == count and len({batch.id for batch in listed}) == len(listed)
        times = [batch.created_at for batch in listed]
        assert times == sorted(times, reverse=True)
