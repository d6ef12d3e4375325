"""An engine step that never ends, as the server's callers and whoever starts it again meet it."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from impala.modelserver.v1 import modelserver_pb2 as pb
from impala.modelserver.v1 import modelserver_pb2_grpc
from libs.errors import Unavailable
from libs.rpc import connect, from_rpc_error, was_accepted
from libs.testing.etcd import EtcdProcess
from libs.testing.rpc import free_port
from libs.testing.waiting import eventually
from services.modelserver.testing import answer

pytestmark = pytest.mark.slow

MODEL = "scripted"
SERVING = health_pb2.HealthCheckResponse.SERVING
WITHIN_S = 60.0
WORD = "HANG"
HANG = [ord(char) - ord("!") for char in WORD]
PLAIN = [70] * 40


@pytest.fixture(scope="module")
def etcd() -> Iterator[EtcdProcess]:
    with EtcdProcess() as process:
        yield process


@dataclass
class Server:
    process: asyncio.subprocess.Process
    stub: Any
    health: Any
    log: Path

    async def is_serving(self) -> bool:
        """Raises AssertionError when it has ended."""
        assert self.process.returncode is None, self.log.read_text()
        try:
            answer = await self.health.Check(health_pb2.HealthCheckRequest(), timeout=5)
        except grpc.aio.AioRpcError:
            return False
        return bool(answer.status == SERVING)

    async def run(self, prompt: Sequence[int], count: int = 8) -> list[int]:
        """Its answer; self-placed."""
        step = pb.GenerateRequest(
            step_id=f"{prompt[0]}-{count}-{len(prompt)}",
            self_placed=pb.SelfPlaced(reason="test"),
            model=MODEL,
            prompt=prompt,
            stopping=pb.Stopping(max_tokens=count, ignore_eos=True),
        )
        call = self.stub.Generate(step, timeout=WITHIN_S)
        return [token async for each in call for delta in each.deltas for token in delta.tokens]


@asynccontextmanager
async def server(etcd: EtcdProcess, folder: Path, *flags: str) -> AsyncIterator[Server]:
    port, log = free_port(), folder / "log"
    command = [sys.executable, "-P", "-m", "services.modelserver.testing", "--port", str(port)]
    command += ["--etcd", etcd.endpoint, "--model", str(folder), "--model-name", MODEL]
    command += ["--kv-bytes", "1MiB", *flags]
    with log.open("wb") as err:
        process = await asyncio.create_subprocess_exec(*command, stdout=err, stderr=err)
    async with connect(f"127.0.0.1:{port}") as channel:
        stub = modelserver_pb2_grpc.ModelServerStub(channel)
        found = Server(process, stub, health_pb2_grpc.HealthStub(channel), log)
        try:
            await eventually(found.is_serving, within_s=WITHIN_S)
            yield found
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()


async def test_a_stuck_step_ends_the_server_with_an_answer_to_everyone_in_it(
    etcd: EtcdProcess, tmp_path: Path
) -> None:
    async with server(etcd, tmp_path, "--hang-on", WORD, "--step-limit-s", "1") as up:
        assert await up.run(PLAIN) == answer(PLAIN, 8, 64, 89)
        steps = [up.run([*PLAIN, *HANG]), up.run(PLAIN, 5000)]
        errors = await asyncio.gather(*steps, return_exceptions=True)
        for error in errors:
            assert isinstance(error, grpc.aio.AioRpcError)
            told = from_rpc_error(error)
            told.__cause__ = error
            assert isinstance(told, Unavailable) and told.reason == "ENGINE_DIED"
            assert was_accepted(told)
        async with asyncio.timeout(WITHIN_S):
            assert await up.process.wait() == 1
    said = up.log.read_text()
    assert "the engine is stuck here" in said and "in _break" in said
    assert "a step went on for 1 s" in said


async def test_a_server_whose_every_step_is_slow_goes_on(etcd: EtcdProcess, tmp_path: Path) -> None:
    """Three limits long in all, each step well below."""
    async with server(etcd, tmp_path, "--step-s", "0.25", "--step-limit-s", "1") as up:
        assert await up.run(PLAIN, 12) == answer(PLAIN, 12, 64, 89)
        assert await up.is_serving()


async def test_without_a_limit_nothing_is_ended(etcd: EtcdProcess, tmp_path: Path) -> None:
    async with server(etcd, tmp_path, "--hang-on", WORD, "--step-limit-s", "0") as up:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(2):
                await up.run(HANG)
        assert await up.is_serving()
