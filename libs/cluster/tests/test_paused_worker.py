"""A process that stands still beyond its time to live, and wakes up."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from libs.cluster.client import EtcdClient
from libs.cluster.election import Election
from libs.cluster.members import Members
from libs.cluster.ops import Put
from libs.testing.etcd import EtcdProcess

WITHIN_S = 20.0


async def test_a_paused_leader_that_wakes_cannot_write_and_registers_again(
    shared_etcd: EtcdProcess, client: EtcdClient, name: str, prefix: str
) -> None:
    key = prefix + "result"
    async with (
        _worker(shared_etcd.endpoint, name, key) as worker,
        Members(client, name) as members,
        asyncio.timeout(3 * WITHIN_S),
    ):
        start = await _line(worker)
        assert await _ask(worker) == {"held": True, "written": True}
        assert members.current()["worker"].epoch == start["member_epoch"]

        worker.send_signal(signal.SIGSTOP)
        async with await Election(client, name, "standby", ttl_s=2).campaign() as successor:
            assert successor.epoch > start["epoch"]
            await members.wait_until(lambda: not members.current())
            await client.txn([successor.guard()], then=[Put(key, b"standby")])

            worker.send_signal(signal.SIGCONT)
            assert await _ask(worker) == {"held": False, "written": False}
            (back,) = (await members.wait_for(1)).values()
            assert back.incarnation == "w" and back.epoch > start["member_epoch"]
        entry = await client.get(key)
        assert entry is not None and entry.value == b"standby"


@asynccontextmanager
async def _worker(endpoint: str, name: str, key: str) -> AsyncIterator[Process]:
    module = "libs.cluster.tests.worker"
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", module, endpoint, name, key, stdin=PIPE, stdout=PIPE
    )
    try:
        yield process
    finally:
        process.kill()
        await process.communicate()


async def _ask(worker: Process) -> dict[str, int]:
    assert worker.stdin is not None
    worker.stdin.write(b"write\n")
    return await _line(worker)


async def _line(worker: Process) -> dict[str, int]:
    assert worker.stdout is not None
    async with asyncio.timeout(WITHIN_S):
        facts: dict[str, int] = json.loads(await worker.stdout.readline())
    return facts
