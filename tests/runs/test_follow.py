"""Who reads results while a run goes on gets each line once and the end, whatever dies."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from tests.robustness.cluster import MODEL, Cluster
from tests.runs.api import Api, chat_line, ids

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(400),
    pytest.mark.xdist_group("runs"),
    pytest.mark.asyncio(loop_scope="package"),
]

GOOD, BAD = 60, 6


def content() -> str:
    """Some lines are refused: one in ten asks for more than there is room for."""
    good = [chat_line(MODEL, f"good-{at}", f"Number {at}", 100) for at in range(GOOD)]
    bad = [chat_line(MODEL, f"bad-{at}", f"Number {at}", 10**6) for at in range(BAD)]
    lines = [line for at in range(BAD) for line in (*good[at * 10 : at * 10 + 10], bad[at])]
    return "".join(lines)


@asynccontextmanager
async def follower(
    folder: Path, batch_id: str, *flags: str
) -> AsyncIterator[asyncio.subprocess.Process]:
    """`impala batch results --follow`; what it prints goes to a file named after its flags."""
    command = [sys.executable, "-m", "services.cli.main", "batch", "results", batch_id, "--follow"]
    env = {key: value for key, value in os.environ.items() if not key.startswith("IMPALA_")}
    with name_of(folder, *flags).open("wb") as out:
        process = await asyncio.create_subprocess_exec(
            *command, *flags, stdout=out, stderr=asyncio.subprocess.PIPE, env=env
        )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def name_of(folder: Path, *flags: str) -> Path:
    return folder / "-".join(flags).replace("/", "_")


async def test_followers_get_each_line_once_over_lost_leaders_and_routers(
    cluster: Cluster, api: Api, tmp_path: Path
) -> None:
    url, grpc = ["--url", cluster.http["router-1"]], ["--grpc", cluster.grpc["router-1"]]
    ways = [url, [*url, *grpc], [*url, "--errors"], [*url, *grpc, "--errors"]]
    batch_id = await api.submit(content())
    async with AsyncExitStack() as stack:
        followers = [
            await stack.enter_async_context(follower(tmp_path, batch_id, *way)) for way in ways
        ]
        for lines, members in (
            (8, ["scheduler-1", "scheduler-2"]),
            (16, ["router-1"]),
            (26, ["router-1", "router-2", "scheduler-1"]),
            (40, ["etcd"]),
        ):
            await api.recorded(batch_id, lines)
            cluster.kill(members)
        batch = await api.ended(batch_id)
        for each in followers:
            async with asyncio.timeout(60):
                _, said = await each.communicate()
            assert each.returncode == 0, said.decode()
    assert batch["request_counts"] == {"total": GOOD + BAD, "completed": GOOD, "failed": BAD}
    recorded = await api.results(batch_id)
    output, errors = [await api.lines(batch[f"{kind}_file_id"]) for kind in ("output", "error")]
    assert ids(output) == sorted(f"good-{at}" for at in range(GOOD))
    assert ids(errors) == sorted(f"bad-{at}" for at in range(BAD))
    assert sorted(recorded) == sorted([*output, *errors])
    for way in ways:
        wanted = errors if "--errors" in way else output
        seen = name_of(tmp_path, *way).read_bytes().splitlines()
        assert seen == [line for line in recorded if line in wanted], way
    assert await api.results(batch_id, after=50) == recorded[50:]


async def test_a_follower_of_a_cancelled_batch_says_so_and_how_far_it_came(
    cluster: Cluster, api: Api, tmp_path: Path
) -> None:
    batch_id = await api.submit(content())
    url = ["--url", cluster.http["router-1"]]
    async with follower(tmp_path, batch_id, *url) as process:
        await api.recorded(batch_id, 5)
        await api.ask("POST", f"/v1/batches/{batch_id}/cancel")
        batch = await api.ended(batch_id)
        _, said = await process.communicate()
    counts = batch["request_counts"]
    assert batch["status"] == "cancelled"
    assert process.returncode == 0
    assert f"is cancelled: {counts['completed']} of {GOOD + BAD} completed" in said.decode()
    printed = name_of(tmp_path, *url).read_bytes().splitlines()
    assert sorted(printed) == sorted(await api.lines(batch["output_file_id"]))
