"""Fakes at the scheduler's seams: a router that does batch work and a model server, both as real
gRPC servers registered in a real etcd, and the batches that tests feed in.

What a line does is told by its custom_id: `ok-*` answers an output, `bad-*` an error (`bad-used-*`
one that used tokens), `retry-*` asks for a retry for ever, `lost-*` loses its server each time,
`hang-*` never answers until it is cancelled.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
import msgspec

from impala.common.v1 import common_pb2
from impala.modelserver.v1 import modelserver_pb2, modelserver_pb2_grpc
from impala.router.v1 import router_pb2, router_pb2_grpc
from impala.scheduler.v1 import scheduler_pb2, scheduler_pb2_grpc
from libs.clock import SystemClock
from libs.cluster.client import EtcdClient
from libs.cluster.membership import Membership
from libs.cluster.ops import Put
from libs.objects import ObjectStore, digest_of
from libs.records import ids, keys
from libs.records.batch import BatchRecord, FileRecord, Job
from libs.records.index import IndexEntry, pack_entries
from libs.records.members import ModelServerInfo, RouterInfo
from libs.testing.rpc import serving

MODEL = "demo"
FLEET = "demo.float32"
ACCOUNT = "local"
ENDPOINT = "/v1/chat/completions"
JOB = Job(
    id="job-00000001",
    model=MODEL,
    fleet=FLEET,
    account=ACCOUNT,
    price_per_engine_hour=3.6,
    created_at=1,
)

Context = Any


@dataclass
class FakeModelServer(modelserver_pb2_grpc.ModelServerServicer):
    """Tells its state; runs nothing. `waiting`, `phase` and the clocks are the test's to set."""

    member_id: str = "ms-1"
    incarnation: str = "life-1"
    max_steps: int = 4
    phase: str = "serving"
    running: int = 0
    """Sequences, of one step."""
    uptime_s: float = 10.0
    busy_s: float = 0.0
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    watches: int = 0
    """State streams begun."""

    async def WatchState(
        self, request: modelserver_pb2.WatchStateRequest, context: Context
    ) -> AsyncIterator[modelserver_pb2.State]:
        self.watches += 1
        while True:
            yield self.state()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.05):
                    await self.changed.wait()

    def state(self) -> modelserver_pb2.State:
        return modelserver_pb2.State(
            member_id=self.member_id,
            incarnation=self.incarnation,
            model=MODEL,
            fleet=FLEET,
            phase=self.phase,
            block_tokens=32,
            total_blocks=10_000,
            running_sequences=self.running,
            running_steps=min(1, self.running),
            max_steps=self.max_steps,
            uptime_s=self.uptime_s,
            busy_s_total=self.busy_s,
        )


@dataclass
class FakeRouter(router_pb2_grpc.BatchWorkerServicer):
    """Indexes and executes the way the contract says, without a model."""

    objects: ObjectStore
    faults: list[router_pb2.BatchError] = field(default_factory=list)
    """What Index finds wrong with any file."""
    hold: asyncio.Event | None = None
    """Lines are answered only once it is set."""
    allow: int | None = None
    """Lines that are still answered; the others are held back until it is None."""
    break_after: int | None = None
    """Answers after which a stream breaks, once."""
    executed: Counter[str] = field(default_factory=Counter)
    """custom_id -> times it was answered."""
    epochs: set[int] = field(default_factory=set)
    answered: asyncio.Event = field(default_factory=asyncio.Event)
    received: int = 0
    most_unanswered: int = 0
    job_id: str = JOB.id
    """The job that Index resolves."""
    indexed: int = 0
    spoil: str = ""
    """The first answer to this custom_id carries a damaged record."""
    trace_of: Callable[[str], str] = lambda custom_id: ""

    async def Index(
        self, request: router_pb2.IndexRequest, context: Context
    ) -> AsyncIterator[router_pb2.IndexProgress]:
        data = await self.objects.get(request.input_object)
        done = router_pb2.IndexDone(
            job_id=self.job_id, model=MODEL, input_bytes=len(data), errors=self.faults
        )
        if not self.faults:
            entries = list(index_of(data))
            index = pack_entries(entries)
            await self.objects.put(request.index_object, index)
            done.lines, done.index_digest = len(entries), digest_of(index)
        self.indexed += 1
        yield router_pb2.IndexProgress(bytes_done=len(data), done=done)

    async def Execute(
        self, request_iterator: AsyncIterator[router_pb2.ExecuteRequest], context: Context
    ) -> AsyncIterator[router_pb2.ExecuteResponse]:
        answers: asyncio.Queue[router_pb2.LineResult | None] = asyncio.Queue()
        reader = asyncio.create_task(self._read(request_iterator, answers))
        try:
            while (result := await answers.get()) is not None:
                yield router_pb2.ExecuteResponse(results=[result])
                if self.break_after is not None:
                    self.break_after -= 1
                    if self.break_after == 0:
                        self.break_after = None
                        await context.abort(grpc.StatusCode.UNAVAILABLE, "the router went away")
        finally:
            reader.cancel()
            await asyncio.gather(reader, return_exceptions=True)

    async def _read(
        self,
        requests: AsyncIterator[router_pb2.ExecuteRequest],
        answers: asyncio.Queue[router_pb2.LineResult | None],
    ) -> None:
        running: dict[int, asyncio.Task[None]] = {}
        start = router_pb2.ExecuteStart()
        async with asyncio.TaskGroup() as group:
            async for request in requests:
                if request.HasField("start"):
                    start = request.start
                    self.epochs.add(start.epoch)
                for ref in request.lines:
                    self.received += 1
                    running[ref.line] = group.create_task(self._answer(start, ref, answers))
                unanswered = sum(not task.done() for task in running.values())
                self.most_unanswered = max(self.most_unanswered, unanswered)
                for line in request.cancel_lines:
                    if line in running and not running[line].done():
                        running[line].cancel()
                        answers.put_nowait(
                            router_pb2.LineResult(
                                line=line, outcome=router_pb2.LINE_OUTCOME_CANCELLED
                            )
                        )
        answers.put_nowait(None)

    async def _answer(
        self,
        start: router_pb2.ExecuteStart,
        ref: router_pb2.LineRef,
        answers: asyncio.Queue[router_pb2.LineResult | None],
    ) -> None:
        data = await self.objects.get_range(start.input_object, ref.offset, ref.length)
        custom_id: str = json.loads(data)["custom_id"]
        if self.hold is not None:
            await self.hold.wait()
        await self._let_through()
        if custom_id.startswith("hang"):
            await asyncio.Event().wait()
        result = router_pb2.LineResult(
            line=ref.line,
            custom_id=custom_id.encode(),
            total_s=1.0,
            trace_id=self.trace_of(custom_id),
        )
        if custom_id.startswith("retry"):
            result.outcome = router_pb2.LINE_OUTCOME_RETRY
            result.reason = "no server"
        elif custom_id.startswith("lost"):
            result.outcome = router_pb2.LINE_OUTCOME_LOST
            result.reason = "The model server was lost while it ran this request."
        else:
            bad = custom_id.startswith("bad")
            result.outcome = (
                router_pb2.LINE_OUTCOME_ERROR if bad else router_pb2.LINE_OUTCOME_OUTPUT
            )
            result.record = record_of(custom_id, 400 if bad else 200)
            if not bad or custom_id.startswith("bad-used"):
                result.usage.CopyFrom(usage_of(custom_id))
        if custom_id == self.spoil:
            self.spoil = ""
            result.record = result.record[:-1]
        self.executed[custom_id] += 1
        answers.put_nowait(result)
        self.answered.set()

    async def _let_through(self) -> None:
        clock = SystemClock()
        while self.allow is not None and self.allow <= 0:
            await clock.sleep(0.01)
        if self.allow is not None:
            self.allow -= 1


def usage_of(custom_id: str) -> common_pb2.Usage:
    """Of an output: another one for each line, the same at each execution."""
    number = sum(custom_id.encode())
    return common_pb2.Usage(
        prompt_tokens=number, cached_tokens=number % 7, completion_tokens=number % 11
    )


def record_of(custom_id: str, status: int) -> bytes:
    usage = usage_of(custom_id)
    body = {
        "usage": {
            "prompt_tokens": usage.prompt_tokens,
            "completion_tokens": usage.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        }
    }
    record = {
        "id": f"batch_req_{custom_id}",
        "custom_id": custom_id,
        "response": {
            "status_code": status,
            "request_id": "r",
            "body": body if status == 200 else {},
        },
        "error": None,
    }
    return json.dumps(record).encode()


def index_of(data: bytes) -> list[IndexEntry]:
    entries, offset = [], 0
    for number, line in enumerate(data.split(b"\n"), start=1):
        if line.strip():
            entries.append(IndexEntry(number, offset, len(line), bytes(16), _hash8(line)))
        offset += len(line) + 1
    return entries


def _hash8(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=8).digest()


@asynccontextmanager
async def router_member(
    client: EtcdClient, router: FakeRouter, member_id: str = "router-1"
) -> AsyncIterator[FakeRouter]:
    add = router_pb2_grpc.add_BatchWorkerServicer_to_server
    async with serving((add, router)) as rpc:
        info = RouterInfo(address=rpc.address, http_url="http://none", incarnation=member_id)
        async with Membership(
            client, "router", member_id, msgspec.to_builtins(info), incarnation=member_id
        ):
            yield router


@asynccontextmanager
async def model_server_member(
    client: EtcdClient, server: FakeModelServer
) -> AsyncIterator[FakeModelServer]:
    add = modelserver_pb2_grpc.add_ModelServerServicer_to_server
    async with serving((add, server)) as rpc:
        info = ModelServerInfo(
            address=rpc.address,
            incarnation=server.incarnation,
            model=MODEL,
            fleet=FLEET,
            precision="float32",
            phase="serving",
            source=MODEL,
            max_context=2048,
            vocab_size=100,
            total_blocks=10_000,
        )
        async with Membership(
            client,
            "modelserver",
            server.member_id,
            msgspec.to_builtins(info),
            incarnation=server.incarnation,
        ):
            yield server


def lines_of(custom_ids: Sequence[str]) -> bytes:
    """A batch file with one request a custom_id."""
    return b"".join(
        json.dumps({"custom_id": each, "method": "POST", "url": ENDPOINT, "body": {}}).encode()
        + b"\n"
        for each in custom_ids
    )


@dataclass
class Submitted:
    batch_id: str
    run_id: str
    input_file_id: str


class Submitter:
    """Creates batches as the router does."""

    def __init__(self, client: EtcdClient, objects: ObjectStore) -> None:
        self._client = client
        self._objects = objects
        self._made = 0

    async def job(self, job: Job = JOB) -> None:
        await self._client.put(keys.job(job.id), msgspec.json.encode(job))

    async def submit(
        self,
        data: bytes | None,
        *,
        expires_at: int | None = None,
        output_expires_after_s: int | None = None,
    ) -> Submitted:
        """`data` None: the file's content is missing."""
        self._made += 1
        file_id = ids.file_id(self._made, bytes(8))
        batch_id = ids.batch_id(self._made, bytes(8))
        run_id = ids.run_id(self._made, bytes(8))
        if data is not None:
            await self._objects.put(keys.file_object(ACCOUNT, file_id), data)
        file = FileRecord(
            id=file_id,
            account=ACCOUNT,
            bytes=len(data or b""),
            digest=digest_of(data or b""),
            filename="in.jsonl",
            purpose="batch",
            created_at=1,
        )
        batch = BatchRecord(
            id=batch_id,
            account=ACCOUNT,
            endpoint=ENDPOINT,
            input_file_id=file_id,
            completion_window="24h",
            created_at=1,
            expires_at=expires_at,
            run_id=run_id,
            output_expires_after_s=output_expires_after_s,
        )
        await self._client.txn(
            [],
            [
                Put(keys.file(ACCOUNT, file_id), msgspec.json.encode(file)),
                Put(keys.batch(ACCOUNT, batch_id), msgspec.json.encode(batch)),
                Put(keys.file_ref(file_id, batch_id), b""),
            ],
        )
        return Submitted(batch_id, run_id, file_id)

    async def cancel(self, submitted: Submitted) -> None:
        await self._client.put(keys.cancel(submitted.batch_id), b"1700000000")


async def run_step(
    stub: scheduler_pb2_grpc.SchedulerAsyncStub, request: scheduler_pb2.AcquireRequest
) -> scheduler_pb2.AcquireResponse:
    """Acquires with a deadline."""
    return await stub.Acquire(request, timeout=10)


def report(
    sequence: int, *, grant_id: str = "", run_id: str = "", engine_s: float = 1.0
) -> scheduler_pb2.StepReport:
    return scheduler_pb2.StepReport(
        sequence=sequence,
        step_id=f"s{sequence}",
        grant_id=grant_id,
        self_placed=not grant_id,
        owner=modelserver_pb2.Owner(account=ACCOUNT, job_id=JOB.id, run_id=run_id),
        usage=common_pb2.Usage(prompt_tokens=10, cached_tokens=4, completion_tokens=5),
        engine_s=engine_s,
    )
