"""A model server and a scheduler for tests of what calls them: real gRPC servers, no model.

They speak the contract (order of messages, statuses with reasons, cancellation), and say in plain
attributes what was asked of them. Made and used on the test's event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from impala.common.v1 import common_pb2
from impala.modelserver.v1 import modelserver_pb2, modelserver_pb2_grpc
from impala.scheduler.v1 import scheduler_pb2, scheduler_pb2_grpc
from libs.errors import FailedPrecondition, ImpalaError, Unavailable
from libs.rpc import RpcServer

Reply = Callable[[modelserver_pb2.GenerateRequest, int], Sequence[int]]
"""(request, choice) -> the tokens that choice would sample, an end token last if it ends itself."""


def echo_reply(end_token: int, length: int = 12) -> Reply:
    """The prompt's own tokens from its start, shifted by the choice; then the end token."""

    def reply(request: modelserver_pb2.GenerateRequest, choice: int) -> list[int]:
        prompt = list(request.prompt)
        tokens = [prompt[(at + choice) % len(prompt)] for at in range(length)]
        return [token for token in tokens if token != end_token] + [end_token]

    return reply


@dataclass
class Gate:
    """Holds every step after `open_after` tokens until `open()`."""

    open_after: int = 0
    _event: asyncio.Event = field(default_factory=asyncio.Event)

    async def wait(self) -> None:
        await self._event.wait()

    def open(self) -> None:
        self._event.set()


class FakeModelServer(modelserver_pb2_grpc.ModelServerServicer):
    """Answers Generate from a `Reply`, `tokens_a_message` each (or all at the end for FINAL)."""

    def __init__(self, model: str, reply: Reply, end_token: int, member_id: str = "ms-1") -> None:
        self.model = model
        self.end_token = end_token
        self.member_id = member_id
        self.running: set[str] = set()
        self._changed = asyncio.Condition()
        self._set(reply)
        self.rpc = RpcServer(["impala.modelserver.v1.ModelServer"], port=0, tunnelled=True)
        for each in self.rpc.servers:
            modelserver_pb2_grpc.add_ModelServerServicer_to_server(self, each)

    def _set(self, reply: Reply) -> None:
        self.reply = reply
        self.cached_tokens = 0
        self.weight_seq = 7
        self.tokens_a_message = 1
        self.hears_aborts = True
        """False: samples on after an Abort, as a server does that hears of it too late."""
        self.gate: Gate | None = None
        self.on_its_way: asyncio.Event | None = None
        """Set: no step is known here before this event."""
        self.failures: list[ImpalaError] = []
        """Raised by the next calls, one each, before the first message."""
        self.fail_after: tuple[int, Exception] | None = None
        """Breaks every step after so many tokens of its first choice."""
        self.requests: list[modelserver_pb2.GenerateRequest] = []
        self.aborts: list[modelserver_pb2.AbortRequest] = []
        self.cancelled: list[str] = []
        self.most_running = 0
        self._stopped: dict[str, set[int]] = {}

    async def reset(self, reply: Reply) -> None:
        """Ends what runs, and is as new."""
        if self.gate is not None:
            self.gate.open()
        await self.wait_until(lambda server: not server.running)
        self._set(reply)

    async def start(self) -> None:
        await self.rpc.start()
        self.rpc.set_serving(True)

    async def stop(self) -> None:
        await self.rpc.stop()

    @property
    def address(self) -> str:
        return self.rpc.address

    async def wait_until(
        self, met: Callable[[FakeModelServer], bool], within_s: float = 5.0
    ) -> None:
        """Returns once `met(self)`; checked at every change of what the attributes tell."""
        async with asyncio.timeout(within_s), self._changed:
            await self._changed.wait_for(lambda: met(self))

    async def _note(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    async def Generate(
        self, request: modelserver_pb2.GenerateRequest, context: Any
    ) -> AsyncIterator[modelserver_pb2.GenerateResponse]:
        self.requests.append(request)
        if self.failures:
            raise self.failures.pop(0)
        if self.on_its_way is not None:
            await self._note()
            await self.on_its_way.wait()
        self.running.add(request.step_id)
        self.most_running = max(self.most_running, len(self.running))
        try:
            await self._note()
            async for message in self._step(request):
                yield message
        except (asyncio.CancelledError, GeneratorExit):
            self.cancelled.append(request.step_id)
            raise
        finally:
            self.running.discard(request.step_id)
            await asyncio.shield(self._note())

    async def _step(
        self, request: modelserver_pb2.GenerateRequest
    ) -> AsyncIterator[modelserver_pb2.GenerateResponse]:
        choices = [_Choice(self, request, index) for index in range(max(1, request.n))]
        yield self._started(request)
        final = request.emission == modelserver_pb2.EMISSION_FINAL
        gathered: list[modelserver_pb2.ChoiceDelta] = []
        for at in range(max(len(choice.tokens) for choice in choices)):
            await self._hold(at)
            deltas = [delta for choice in choices for delta in choice.emit(at)]
            gathered.extend(deltas)
            if gathered and not final and (at + 1) % self.tokens_a_message == 0:
                yield modelserver_pb2.GenerateResponse(deltas=_merge(gathered))
                gathered.clear()
        if gathered:
            yield modelserver_pb2.GenerateResponse(deltas=_merge(gathered))
        yield self._done(request, sum(choice.sent for choice in choices))

    async def _hold(self, at: int) -> None:
        if self.fail_after is not None and at >= self.fail_after[0]:
            raise self.fail_after[1]
        if self.gate is not None and at >= self.gate.open_after:
            await self.gate.wait()
        await asyncio.sleep(0)

    def stopped(self, step_id: str, choice: int) -> bool:
        return choice in self._stopped.get(step_id, set())

    def _started(
        self, request: modelserver_pb2.GenerateRequest
    ) -> modelserver_pb2.GenerateResponse:
        return modelserver_pb2.GenerateResponse(
            started=modelserver_pb2.Started(
                prompt_tokens=len(request.prompt),
                cached_tokens=self._cached(request),
                weights=common_pb2.WeightVersion(
                    model=self.model, seq=self.weight_seq, digest=bytes(32)
                ),
            )
        )

    def _done(
        self, request: modelserver_pb2.GenerateRequest, completion_tokens: int
    ) -> modelserver_pb2.GenerateResponse:
        usage = common_pb2.Usage(
            prompt_tokens=len(request.prompt),
            cached_tokens=self._cached(request),
            completion_tokens=completion_tokens,
        )
        return modelserver_pb2.GenerateResponse(done=modelserver_pb2.Done(usage=usage))

    def _cached(self, request: modelserver_pb2.GenerateRequest) -> int:
        return min(self.cached_tokens, len(request.prompt) - 1)

    async def Abort(
        self, request: modelserver_pb2.AbortRequest, context: Any
    ) -> modelserver_pb2.AbortResponse:
        self.aborts.append(request)
        if self.hears_aborts:
            self._stopped.setdefault(request.step_id, set()).add(request.choice)
        await self._note()
        return modelserver_pb2.AbortResponse(found=request.step_id in self.running)


class _Choice:
    """One choice of a step: what it will say, and how much of it was said."""

    def __init__(
        self, server: FakeModelServer, request: modelserver_pb2.GenerateRequest, index: int
    ) -> None:
        wanted = list(server.reply(request, index))
        limit = request.stopping.max_tokens or len(wanted)
        self.tokens = wanted[:limit]
        self.index = index
        self.sent = 0
        self._server = server
        self._request = request
        self._ended = False

    def emit(self, at: int) -> Iterator[modelserver_pb2.ChoiceDelta]:
        if self._ended or at >= len(self.tokens):
            return
        if self._server.stopped(self._request.step_id, self.index):
            self._ended = True
            yield modelserver_pb2.ChoiceDelta(
                index=self.index, finish_reason=common_pb2.FINISH_REASON_STOP
            )
            return
        token = self.tokens[at]
        self.sent += 1
        delta = modelserver_pb2.ChoiceDelta(index=self.index, tokens=[token])
        if self._request.HasField("logprobs"):
            delta.logprobs.append(_logprobs(token, self._request.logprobs))
        ends = token == self._server.end_token or token in self._request.stopping.stop_token_ids
        if at == len(self.tokens) - 1 or ends:
            self._ended = True
            delta.stopped_by_token = ends
            delta.finish_reason = (
                common_pb2.FINISH_REASON_STOP if ends else common_pb2.FINISH_REASON_LENGTH
            )
        yield delta


def _logprobs(token: int, top: int) -> modelserver_pb2.Logprobs:
    best = [
        modelserver_pb2.TokenLogprob(token=token + rank, logprob=-0.25 - rank)
        for rank in range(top)
    ]
    chosen = modelserver_pb2.TokenLogprob(token=token, logprob=-0.25)
    return modelserver_pb2.Logprobs(chosen=chosen, top=best)


def _merge(
    deltas: Sequence[modelserver_pb2.ChoiceDelta],
) -> list[modelserver_pb2.ChoiceDelta]:
    merged: dict[int, modelserver_pb2.ChoiceDelta] = {}
    for delta in deltas:
        whole = merged.setdefault(delta.index, modelserver_pb2.ChoiceDelta(index=delta.index))
        whole.MergeFrom(delta)
    return list(merged.values())


class FakeScheduler(scheduler_pb2_grpc.SchedulerServicer):
    """Grants at once, round robin over `servers` (member id and address)."""

    def __init__(self, fleet: str, servers: Sequence[tuple[str, str]], epoch: int = 5) -> None:
        self.fleet = fleet
        self.servers = list(servers)
        self.epoch = epoch
        self.waiting = 0
        self._changed = asyncio.Condition()
        self.reset()
        self.rpc = RpcServer(["impala.scheduler.v1.Scheduler"], port=0, tunnelled=True)
        for each in self.rpc.servers:
            scheduler_pb2_grpc.add_SchedulerServicer_to_server(self, each)

    def reset(self) -> None:
        """As new; `servers` and `epoch` stay."""
        self.leader: str | None = None
        """Set: answers NOT_LEADER."""
        self.failures: list[ImpalaError] = []
        self.acquired: list[scheduler_pb2.AcquireRequest] = []
        self.released: list[scheduler_pb2.ReleaseRequest] = []
        self.hold: asyncio.Event | None = None
        """Set: no step is granted before this event."""

    async def start(self) -> None:
        await self.rpc.start()
        self.rpc.set_serving(True)

    async def stop(self) -> None:
        await self.rpc.stop()

    @property
    def address(self) -> str:
        return self.rpc.address

    async def Acquire(
        self, request: scheduler_pb2.AcquireRequest, context: Any
    ) -> scheduler_pb2.AcquireResponse:
        self.acquired.append(request)
        if self.leader is not None:
            raise FailedPrecondition(f"{self.leader} leads this fleet.", "NOT_LEADER")
        if self.failures:
            raise self.failures.pop(0)
        if self.hold is not None:
            await self._wait(self.hold)
        open_to = [each for each in self.servers if each[0] != request.exclude_member]
        if not open_to:
            raise Unavailable("The fleet has no live server.", "NO_SERVERS", None, 1.0)
        member, address = open_to[len(self.acquired) % len(open_to)]
        number = len(self.acquired)
        grant = modelserver_pb2.Grant(
            grant_id=f"grant-{number}",
            fleet=self.fleet,
            epoch=self.epoch,
            expires_unix_ms=2**52,
            valid_s=60.0,
            member_id=member,
            trace_id=request.trace_id or f"trace-{number}",
        )
        return scheduler_pb2.AcquireResponse(step_id=request.step_id, grant=grant, address=address)

    async def _wait(self, hold: asyncio.Event) -> None:
        self.waiting += 1
        try:
            await self._note()
            await hold.wait()
        finally:
            self.waiting -= 1
            await asyncio.shield(self._note())

    async def _note(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    async def wait_until(self, met: Callable[[FakeScheduler], bool], within_s: float = 5.0) -> None:
        """Returns once `met(self)`; checked when a step begins or ends to wait, or is released."""
        async with asyncio.timeout(within_s), self._changed:
            await self._changed.wait_for(lambda: met(self))

    async def Release(
        self, request: scheduler_pb2.ReleaseRequest, context: Any
    ) -> scheduler_pb2.ReleaseResponse:
        self.released.append(request)
        await self._note()
        return scheduler_pb2.ReleaseResponse()
