"""A whole model server over a tiny model: real etcd, real sockets, the real engine thread."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from impala.leap.v1 import leap_pb2, leap_pb2_grpc
from impala.modelserver.v1 import modelserver_pb2 as pb
from impala.modelserver.v1 import modelserver_pb2_grpc
from impala.scheduler.v1 import scheduler_pb2, scheduler_pb2_grpc
from libs.cluster.client import EtcdClient
from libs.cluster.election import Election, Leadership
from libs.cluster.membership import Membership
from libs.records import keys
from libs.rpc import Shutdown, connect
from libs.testing.rpc import free_port, serving
from services.modelserver.config import ModelServerConfig
from services.modelserver.serve import serve
from services.modelserver.torch_model import load

MODEL = "tiny"
WAIT_S = 20.0
_ids = itertools.count()


class FakeScheduler(scheduler_pb2_grpc.SchedulerServicer):
    """Books reports like a leader: once each, up to the first gap. `deaf` loses answers."""

    def __init__(self) -> None:
        self.booked: dict[tuple[str, int], scheduler_pb2.StepReport] = {}
        self.received = 0
        self.asked = 0
        self.unacknowledged = 0
        self.lose_answers = 0
        self.epoch = 1
        self.acknowledges = True
        """Whether what is booked is written, too."""
        self.heard = asyncio.Event()

    async def Report(self, request: scheduler_pb2.ReportRequest, context: Any) -> Any:
        self.asked += 1
        for step in request.steps:
            self.received += 1
            self.booked[request.incarnation, step.sequence] = step
        self.heard.set()
        if self.lose_answers:
            self.lose_answers -= 1
            await context.abort(grpc.StatusCode.UNAVAILABLE, "the answer was lost")
        last = max((sequence for _, sequence in self.booked), default=0)
        acknowledged = last if self.acknowledges else request.acknowledged
        self.unacknowledged = last - acknowledged
        return scheduler_pb2.ReportResponse(acknowledged=acknowledged, epoch=self.epoch)

    async def wait_for(self, count: int) -> list[scheduler_pb2.StepReport]:
        async with asyncio.timeout(WAIT_S):
            while len(self.booked) < count:
                self.heard.clear()
                await self.heard.wait()
        return [self.booked[key] for key in sorted(self.booked)]


class FakeLeap(leap_pb2_grpc.LeapServicer):
    """Numbers every manifest `seq`."""

    def __init__(self, seq: int) -> None:
        self.seq = seq
        self.manifests: list[leap_pb2.Manifest] = []

    async def RegisterVersion(self, request: leap_pb2.RegisterVersionRequest, context: Any) -> Any:
        self.manifests.append(request.manifest)
        version = leap_pb2.Version(seq=self.seq, manifest=request.manifest)
        return leap_pb2.RegisterVersionResponse(version=version, created=True)


@dataclass
class Rig:
    """One running model server and how to talk to it."""

    etcd: EtcdClient
    stub: Any
    channel: grpc.aio.Channel
    task: asyncio.Task[None]
    shutdown: Shutdown
    scheduler: FakeScheduler
    leap: FakeLeap
    leadership: Leadership | None = None

    async def state(self) -> pb.State:
        answer: pb.State = await self.stub.GetState(pb.GetStateRequest(), timeout=WAIT_S)
        return answer

    @property
    def epoch(self) -> int:
        """Of the fleet's leader."""
        assert self.leadership is not None
        return self.leadership.epoch

    async def follow_leader(self) -> None:
        """The leader goes and is elected anew."""
        assert self.leadership is not None
        await self.leadership.resign()
        name = keys.fleet_election(f"{MODEL}.float32")
        self.leadership = await Election(self.etcd, name, "scheduler-0").campaign()

    async def until_no_block_is_used(self) -> pb.State:
        async with asyncio.timeout(WAIT_S):
            while True:
                state = await self.state()
                if state.free_blocks + state.cached_blocks == state.total_blocks:
                    return state

    async def run(self, request: pb.GenerateRequest) -> list[pb.GenerateResponse]:
        call = self.stub.Generate(request, timeout=WAIT_S)
        return [response async for response in call]


def request(prompt: Sequence[int], max_tokens: int = 8, **fields: Any) -> pb.GenerateRequest:
    """A greedy self-placed step with a fresh id."""
    base: dict[str, Any] = {
        "step_id": f"step-{next(_ids)}",
        "self_placed": pb.SelfPlaced(reason="test"),
        "model": MODEL,
        "prompt": prompt,
        "stopping": pb.Stopping(max_tokens=max_tokens, ignore_eos=True),
    }
    return pb.GenerateRequest(**(base | fields))


def tokens_of(responses: Sequence[pb.GenerateResponse], choice: int = 0) -> list[int]:
    return [
        token
        for response in responses
        for delta in response.deltas
        if delta.index == choice
        for token in delta.tokens
    ]


async def rest_of(call: Any) -> list[pb.GenerateResponse]:
    """What is left of a call that was begun with `read`."""
    responses = []
    while (response := await call.read()) is not grpc.aio.EOF:
        responses.append(response)
    return responses


@contextlib.asynccontextmanager
async def model_server(
    folder: Path,
    etcd_endpoint: str,
    *,
    leap_seq: int = 3,
    with_leader: bool = True,
    keep_cluster: bool = False,
    **flags: Any,
) -> AsyncIterator[Rig]:
    """Up and serving. With a Leap and a scheduler that leads its fleet, in a cluster of its own;
    with `keep_cluster` it joins the one that is there."""
    scheduler = FakeScheduler()
    leap = FakeLeap(leap_seq)
    async with contextlib.AsyncExitStack() as stack:
        etcd = await stack.enter_async_context(EtcdClient([etcd_endpoint]))
        if not keep_cluster:
            await etcd.delete_prefix("/impala/")
        for service, add, servicer in (
            ("scheduler", scheduler_pb2_grpc.add_SchedulerServicer_to_server, scheduler),
            ("leap", leap_pb2_grpc.add_LeapServicer_to_server, leap),
        ):
            rpc = await stack.enter_async_context(serving((add, servicer)))
            info = {"address": rpc.address, "incarnation": "x"}
            if not keep_cluster:
                await stack.enter_async_context(
                    Membership(etcd, service, f"{service}-0", info, incarnation="x")
                )
        config = ModelServerConfig(
            **{
                "port": free_port(),
                "etcd": (etcd_endpoint,),
                "member": "ms-0",
                "model": str(folder),
                "model_name": MODEL,
                "precision": "float32",
                "threads": 1,
                "kv_bytes": 4 << 20,
                "max_batch_tokens": 64,
                "drain_s": 5.0,
                **flags,
            }
        )
        election = Election(etcd, keys.fleet_election(f"{MODEL}.float32"), "scheduler-0")
        leads = with_leader and not keep_cluster
        leadership = await election.campaign() if leads else None
        shutdown = Shutdown()
        task = asyncio.create_task(serve(config, shutdown, load))
        channel = await stack.enter_async_context(connect(f"127.0.0.1:{config.port}"))
        stub = modelserver_pb2_grpc.ModelServerStub(channel)
        rig = Rig(etcd, stub, channel, task, shutdown, scheduler, leap, leadership)
        await _until_serving(rig)
        try:
            yield rig
        finally:
            shutdown.request("the test is over")
            await task
            if rig.leadership is not None:
                await rig.leadership.resign()


async def _until_serving(rig: Rig) -> None:
    async with asyncio.timeout(WAIT_S):
        while True:
            if rig.task.done():
                rig.task.result()
            with contextlib.suppress(grpc.aio.AioRpcError):
                state = await rig.stub.GetState(
                    pb.GetStateRequest(), timeout=5, wait_for_ready=True
                )
                if state.phase == "serving" and state.weights.seq:
                    return
