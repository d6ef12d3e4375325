"""A model server and a real kvstore process: KV that left the pool comes back whole or not."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from transformers import LlamaForCausalLM

from impala.kvstore.v1 import kvstore_pb2, kvstore_pb2_grpc
from impala.modelserver.v1 import modelserver_pb2 as pb
from libs.cluster.keys import members_prefix
from libs.rpc import connect
from libs.testing.etcd import EtcdProcess
from libs.testing.rpc import free_port
from libs.testing.waiting import eventually
from services.modelserver.tests.models.factories import (
    assert_greedy_equal,
    prompt_of,
    reference_greedy,
    save_tiny,
)
from services.modelserver.tests.service.rig import Rig, model_server, request, tokens_of

BLOCK_BYTES = 2 * 3 * 32 * 2 * 32 * 4
POOL_BLOCKS = 8
WAIT_S = 20.0


@pytest.fixture(scope="module")
def etcd() -> Iterator[EtcdProcess]:
    with EtcdProcess() as process:
        yield process


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tiny")


@pytest.fixture(scope="module")
def reference(folder: Path) -> LlamaForCausalLM:
    return save_tiny(folder)


class KvStore:
    """A kvstore process and a client of it."""

    def __init__(
        self, process: asyncio.subprocess.Process, stub: kvstore_pb2_grpc.KvStoreStub
    ) -> None:
        self.process = process
        self.stub = stub

    async def stats(self) -> kvstore_pb2.StatsResponse:
        answer: kvstore_pb2.StatsResponse = await self.stub.Stats(  # type: ignore[misc]
            kvstore_pb2.StatsRequest(), timeout=WAIT_S, wait_for_ready=True
        )
        return answer

    async def until_stored(self, blocks: int) -> None:
        async def stored() -> bool:
            return (await self.stats()).puts >= blocks

        await eventually(stored)


@contextlib.asynccontextmanager
async def kvstore(etcd: EtcdProcess, rig: Rig) -> AsyncIterator[KvStore]:
    port = free_port()
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "services.kvstore.main"),
        *("--etcd", etcd.endpoint, "--port", str(port), "--member", f"kvstore-{port}"),
    )
    try:
        async with connect(f"127.0.0.1:{port}") as channel:
            store = KvStore(process, kvstore_pb2_grpc.KvStoreStub(channel))
            await eventually(lambda: _is_member(rig))
            yield store
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGCONT)
            process.kill()
        await process.wait()


async def _is_member(rig: Rig) -> bool:
    return bool((await rig.etcd.list(members_prefix("kvstore"))).entries)


@contextlib.asynccontextmanager
async def small_server(folder: Path, etcd: EtcdProcess) -> AsyncIterator[Rig]:
    """A pool that one long prompt fills."""
    async with model_server(folder, etcd.endpoint, kv_bytes=POOL_BLOCKS * BLOCK_BYTES) as rig:
        assert (await rig.state()).total_blocks == POOL_BLOCKS
        yield rig


async def push_out(rig: Rig) -> None:
    """Fill the pool with other prompts."""
    for seed in (1, 2):
        await rig.run(request(prompt_of(200, seed=seed)))


async def run_checked(
    rig: Rig, reference: LlamaForCausalLM, prompt: list[int]
) -> pb.GenerateResponse:
    responses = await rig.run(request(prompt))
    theirs, gaps = reference_greedy(reference, prompt, 8)
    assert_greedy_equal(tokens_of(responses), theirs, gaps)
    return responses[-1]


async def test_a_prefix_that_left_the_pool_comes_back_from_the_kvstore(
    folder: Path, reference: LlamaForCausalLM, etcd: EtcdProcess
) -> None:
    async with small_server(folder, etcd) as rig, kvstore(etcd, rig) as store:
        prompt = prompt_of(200)
        await run_checked(rig, reference, prompt)
        await push_out(rig)
        await store.until_stored(6)
        last = await run_checked(rig, reference, prompt)
        assert last.done.usage.cached_tokens == 192
        assert (await rig.state()).kv_loaded_blocks_total >= 1
        assert (await store.stats()).hits >= 1


async def test_a_server_that_restarts_finds_the_prefix_of_its_former_life(
    folder: Path, reference: LlamaForCausalLM, etcd: EtcdProcess
) -> None:
    prompt = prompt_of(200, seed=7)
    async with small_server(folder, etcd) as rig, kvstore(etcd, rig) as store:
        await run_checked(rig, reference, prompt)
        await push_out(rig)
        await store.until_stored(6)
        async with model_server(
            folder, etcd.endpoint, keep_cluster=True, member="ms-1", kv_bytes=16 * BLOCK_BYTES
        ) as other:
            last = await run_checked(other, reference, prompt)
            assert last.done.usage.cached_tokens == 192


async def test_a_killed_kvstore_costs_a_recompute_and_nothing_else(
    folder: Path, reference: LlamaForCausalLM, etcd: EtcdProcess
) -> None:
    async with small_server(folder, etcd) as rig, kvstore(etcd, rig) as store:
        prompt = prompt_of(200)
        await run_checked(rig, reference, prompt)
        await push_out(rig)
        await store.until_stored(6)
        store.process.kill()
        await store.process.wait()
        last = await run_checked(rig, reference, prompt)
        assert last.done.usage.cached_tokens < 192
        await rig.until_no_block_is_used()


async def test_a_kvstore_that_hangs_delays_a_step_by_a_bounded_time_only(
    folder: Path, reference: LlamaForCausalLM, etcd: EtcdProcess
) -> None:
    async with small_server(folder, etcd) as rig, kvstore(etcd, rig) as store:
        prompt = prompt_of(200)
        await run_checked(rig, reference, prompt)
        await push_out(rig)
        await store.until_stored(6)
        os.kill(store.process.pid, signal.SIGSTOP)
        waiting = asyncio.create_task(run_checked(rig, reference, prompt))
        running = await run_checked(rig, reference, prompt_of(20, seed=9))
        assert not waiting.done(), "a step without full blocks does not wait for the kvstore"
        assert running.done.usage.completion_tokens == 8
        await waiting
        await rig.until_no_block_is_used()


async def test_without_a_kvstore_evicted_blocks_are_dropped_and_steps_go_on(
    folder: Path, reference: LlamaForCausalLM, etcd: EtcdProcess
) -> None:
    async with small_server(folder, etcd) as rig:
        prompt = prompt_of(200)
        await run_checked(rig, reference, prompt)
        await push_out(rig)
        await run_checked(rig, reference, prompt)
        assert (await rig.state()).kv_stored_blocks_total == 0
