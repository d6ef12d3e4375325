"""A step that the model fails on, and an engine that broke, as their callers meet them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from transformers import LlamaForCausalLM

from impala.common.v1 import common_pb2
from impala.modelserver.v1 import modelserver_pb2 as pb
from libs.errors import ImpalaError, Internal, StartupError, Unavailable
from libs.rpc import from_rpc_error, was_accepted
from libs.testing.etcd import EtcdProcess
from services.modelserver.herd.core.suspects import ALONE_LIMIT
from services.modelserver.tests.models.factories import (
    assert_greedy_equal,
    prompt_of,
    reference_greedy,
    save_tiny_nan,
)
from services.modelserver.tests.service.rig import Rig, model_server, request, tokens_of

POISON = 7


@pytest.fixture(scope="module")
def etcd() -> Iterator[EtcdProcess]:
    with EtcdProcess() as process:
        yield process


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("nan")


@pytest.fixture(scope="module")
def reference(folder: Path) -> LlamaForCausalLM:
    return save_tiny_nan(folder, POISON)


def prompt(length: int, *, poisoned: bool = False) -> list[int]:
    tokens = [token if token != POISON else POISON + 1 for token in prompt_of(length)]
    return [*tokens[:-1], POISON] if poisoned else tokens


async def failure(rig: Rig, step: pb.GenerateRequest) -> ImpalaError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await rig.run(step)
    error = from_rpc_error(caught.value)
    error.__cause__ = caught.value
    return error


@pytest.mark.parametrize("emission", [pb.EMISSION_EACH, pb.EMISSION_FINAL])
async def test_one_bad_step_in_a_full_batch_gets_one_error_and_one_report(
    folder: Path, reference: LlamaForCausalLM, etcd: EtcdProcess, emission: Any
) -> None:
    async with model_server(folder, etcd.endpoint) as rig:
        prompts = [prompt(20 + 3 * n) for n in range(15)]
        bad = request(
            prompt(30, poisoned=True), n=2, emission=emission, owner=pb.Owner(run_id="bad")
        )
        failing = asyncio.create_task(failure(rig, bad))
        answers = await asyncio.gather(
            *(rig.run(request(each, emission=emission)) for each in prompts)
        )
        error = await failing
        assert isinstance(error, Internal) and error.reason == "STEP_FAULT"
        assert error.message == "The model failed on this request; others are not affected."
        for each, responses in zip(prompts, answers, strict=True):
            theirs, gaps = reference_greedy(reference, each, 8)
            assert_greedy_equal(tokens_of(responses), theirs, gaps)
        reports = await rig.scheduler.wait_for(16)
        (report,) = [each for each in reports if each.owner.run_id == "bad"]
        assert report.finish_reason == common_pb2.FINISH_REASON_ERROR
        assert report.usage == common_pb2.Usage()
        await rig.until_no_block_is_used()
        assert len(tokens_of(await rig.run(request(prompt(25))))) == 8


async def test_a_dead_engine_ends_every_step_once_as_one_to_try_elsewhere(
    folder: Path, reference: LlamaForCausalLM, etcd: EtcdProcess
) -> None:
    async with contextlib.AsyncExitStack() as stack:
        stack.enter_context(pytest.raises(StartupError, match="engine stopped"))
        server = model_server(folder, etcd.endpoint, max_seqs=1)
        rig = await stack.enter_async_context(server)
        ahead = rig.stub.Generate(request(prompt(40), 300))
        await ahead.read()
        bad = [request(prompt(20 + n, poisoned=True)) for n in range(ALONE_LIMIT + 2)]
        failures = [asyncio.create_task(failure(rig, step)) for step in bad]
        async with asyncio.timeout(10):
            while (await rig.state()).waiting_steps < len(bad):
                pass
        ahead.cancel()
        errors = await asyncio.gather(*failures)
        faults = [error for error in errors if isinstance(error, Internal)]
        died = [error for error in errors if isinstance(error, Unavailable)]
        assert [error.reason for error in faults] == ["STEP_FAULT"] * (ALONE_LIMIT - 1)
        assert [error.reason for error in died] == ["ENGINE_DIED"] * 3
        assert all(error.retry_after_s == 1.0 and was_accepted(error) for error in died)
