"""Engines that hang, die or stand still: they cost the lines that are why, and no other."""

from __future__ import annotations

import asyncio
import json
import os
import signal

import pytest

from tests.robustness.cluster import MODEL, Cluster
from tests.runs.api import Api, answers, chat_line, ids
from tests.runs.conftest import HANGS, KILLS

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(400),
    pytest.mark.xdist_group("runs"),
    pytest.mark.asyncio(loop_scope="package"),
]

LINES = 30
TOKENS = 10
WITHIN_S = 250.0


def content(bad: str = "") -> str:
    """With a line in the middle that has the word, if there is one."""
    lines = [chat_line(MODEL, f"good-{at}", f"Number {at}", TOKENS) for at in range(LINES)]
    if bad:
        lines.insert(LINES // 2, chat_line(MODEL, "bad", f"Do {bad} it", TOKENS))
    return "".join(lines)


async def assert_only_the_bad_line_failed(api: Api, batch_id: str) -> None:
    batch = await api.ended(batch_id, WITHIN_S)
    assert batch["status"] == "completed"
    assert batch["request_counts"] == {"total": LINES + 1, "completed": LINES, "failed": 1}
    output, errors = [await api.lines(batch[f"{kind}_file_id"]) for kind in ("output", "error")]
    good = await api.ended(await api.submit(content()))
    assert answers(output) == answers(await api.lines(good["output_file_id"]))
    (error,) = map(json.loads, errors)
    assert (error["custom_id"], error["response"]) == ("bad", None)
    assert error["error"]["code"] == "engine_error"
    assert "The model server was lost while it ran this request" in error["error"]["message"]
    assert ids(await api.results(batch_id)) == ids([*output, *errors])


async def test_a_line_that_hangs_its_engine_ends_as_an_error_and_alone(
    cluster: Cluster, api: Api
) -> None:
    await assert_only_the_bad_line_failed(api, await api.submit(content(HANGS)))


async def test_a_line_that_kills_its_server_is_bounded_though_leaders_change_all_the_time(
    cluster: Cluster, api: Api
) -> None:
    """Each time a server dies, the leader that saw it is killed a moment later."""
    batch_id = await api.submit(content(KILLS))
    ending = asyncio.create_task(assert_only_the_bad_line_failed(api, batch_id))
    servers, deaths = _servers(cluster), 0
    while not ending.done():
        await asyncio.wait([ending], timeout=0.1)
        now = _servers(cluster)
        if servers - now:
            deaths += 1
            await asyncio.wait([ending], timeout=1.0)
            cluster.kill(["scheduler-1", "scheduler-2"])
        servers = now
    await ending
    assert deaths


def _servers(cluster: Cluster) -> set[int]:
    return {pid for name, pid in cluster.pids().items() if name.startswith("modelserver")}


async def test_the_lines_of_a_server_that_stands_still_are_run_elsewhere(
    cluster: Cluster, api: Api
) -> None:
    """It is paused until the batch has ended without it."""
    lines = [chat_line(MODEL, f"l{at}", f"Number {at}", 60) for at in range(LINES)]
    batch_id = await api.submit("".join(lines))
    await api.recorded(batch_id, 1)
    pid = cluster.pids()["modelserver-1"]
    os.kill(pid, signal.SIGSTOP)
    try:
        batch = await api.ended(batch_id, WITHIN_S)
    finally:
        os.kill(pid, signal.SIGCONT)
    assert batch["request_counts"] == {"total": LINES, "completed": LINES, "failed": 0}
    output = await api.lines(batch["output_file_id"])
    assert ids(output) == sorted(f"l{at}" for at in range(LINES))
    assert sorted(await api.results(batch_id)) == sorted(output)
