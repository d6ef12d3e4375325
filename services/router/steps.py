"""One step on a model server: acquire, generate, and try elsewhere while nothing was sampled."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from impala.common.v1 import common_pb2
from impala.modelserver.v1 import modelserver_pb2, modelserver_pb2_grpc
from impala.scheduler.v1 import scheduler_pb2
from libs.errors import (
    Aborted,
    AlreadyExists,
    DeadlineExceeded,
    FailedPrecondition,
    ImpalaError,
    Internal,
    ResourceExhausted,
    Unavailable,
)
from libs.rpc import call, stream, was_accepted, was_cut
from services.router.channels import Channels
from services.router.domain_errors import ServerLost
from services.router.placing import Placement, Placing

log = logging.getLogger(__name__)

MAX_ATTEMPTS = 4
MAX_LOSSES = 2
"""Servers that one request may be on when they are lost: it may be why they are."""
BACKOFF_S = 0.1
"""Rest after the first attempt, less up to half of it by chance; doubles with each."""
RESTART_S = 1.0
ABORT_WITHIN_S = 2.0


@dataclass(frozen=True, slots=True)
class StepRequest:
    """What is asked of the scheduler and of the server; `step_id`s are filled here."""

    fleet: str
    acquire: scheduler_pb2.AcquireRequest
    generate: modelserver_pb2.GenerateRequest
    within_s: float
    """Seconds until the answer is useless; bounds everything."""
    may_self_place: bool


@dataclass(frozen=True, slots=True)
class Running:
    """A step that a server runs: how to end one of its choices early."""

    step_id: str
    placement: Placement
    waited_s: float
    """From the first Acquire to the grant."""


class Steps:
    """Runs steps. Every step ends in exactly one of: `done`, an error, its cancellation."""

    def __init__(
        self,
        placing: Placing,
        channels: Channels,
        *,
        backoff_s: float = BACKOFF_S,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
        chance: Callable[[], float] = random.random,
    ) -> None:
        """`chance` gives numbers in [0, 1)."""
        self._placing = placing
        self._channels = channels
        self._backoff_s = backoff_s
        self._sleep = sleep
        self._chance = chance
        self._aborts: set[asyncio.Task[None]] = set()

    async def run(
        self, step_id: str, request: StepRequest
    ) -> AsyncGenerator[tuple[Running, modelserver_pb2.GenerateResponse], None]:
        """The server's messages. Close it early (`aclosing`) to cancel the step.

        A server that refuses, or is lost before the first sampled token, is given up for another
        one after a short rest, `MAX_ATTEMPTS` in all, `MAX_LOSSES` of them losses; later losses are
        raised. A line of a batch goes back to its leader at the first loss: the leader counts them.
        """
        loop = asyncio.get_running_loop()
        started = loop.time()
        exclude = ""
        losses_left = MAX_LOSSES if request.may_self_place else 1
        for attempt in range(1, MAX_ATTEMPTS + 1):
            left = started + request.within_s - loop.time()
            if left <= 0:
                raise DeadlineExceeded("The request's time ran out.", "DEADLINE_PASSED")
            attempt_id = step_id if attempt == 1 else f"{step_id}.{attempt}"
            placement = await self._acquire(attempt_id, request, exclude, left)
            running = Running(attempt_id, placement, loop.time() - started)
            sampled = False
            try:
                left = started + request.within_s - loop.time()
                async with contextlib.aclosing(self._generate(running, request, left)) as messages:
                    async for message in messages:
                        sampled = sampled or bool(message.deltas)
                        yield running, message
                return
            except ImpalaError as error:
                losses_left -= isinstance(error, ServerLost)
                if sampled or attempt == MAX_ATTEMPTS or not losses_left or not is_retryable(error):
                    raise
                rest = self._backoff_s * 2.0 ** (attempt - 1) * (1.0 - self._chance() / 2)
                if loop.time() + rest >= started + request.within_s:
                    raise
                log.info(
                    "trying a step elsewhere",
                    extra={"server": placement.member_id, "reason": error.reason},
                )
                exclude = "" if _is_grants_fault(error) else placement.member_id
            await self._sleep(rest)

    async def _acquire(
        self, step_id: str, request: StepRequest, exclude: str, within_s: float
    ) -> Placement:
        acquire = scheduler_pb2.AcquireRequest()
        acquire.CopyFrom(request.acquire)
        acquire.step_id = step_id
        acquire.exclude_member = exclude
        return await self._placing.acquire(
            acquire, request.fleet, within_s=within_s, may_self_place=request.may_self_place
        )

    async def _generate(
        self, running: Running, request: StepRequest, within_s: float
    ) -> AsyncGenerator[modelserver_pb2.GenerateResponse, None]:
        placement = running.placement
        generate = modelserver_pb2.GenerateRequest()
        generate.CopyFrom(request.generate)
        generate.step_id = running.step_id
        generate.min_seq = placement.min_seq
        generate.trace_id = placement.trace_id
        if placement.grant is not None:
            generate.grant.CopyFrom(placement.grant)
            if generate.grant.HasField("valid_s"):
                held_s = asyncio.get_running_loop().time() - placement.granted_at
                generate.grant.valid_s -= held_s
        else:
            generate.self_placed.reason = placement.self_placed
        stub = self._channels.stub(
            modelserver_pb2_grpc.ModelServerStub,
            placement.address,
            tunnelled=not request.may_self_place,
        )
        heard = ended = False
        try:
            async with self._placing.counted(placement):
                messages = stream(stub.Generate, generate, timeout_s=max(0.001, within_s))
                async with contextlib.aclosing(messages) as answers:  # type: ignore[type-var]
                    async for message in answers:
                        heard = True
                        ended = ended or message.HasField("done")
                        yield message
        except ImpalaError as error:
            # Only a refused step gives its grant back: one that was taken ends it by its report,
            # also when it is closed here, before anything was heard.
            if not (heard or was_accepted(error)):
                self._placing.release(placement, "NOT_STARTED")
            elif _is_loss(error):
                raise ServerLost(getattr(error, "retry_after_s", None) or RESTART_S) from error
            raise
        except (asyncio.CancelledError, GeneratorExit):
            if not heard and placement.grant is not None:
                self._in_background(self._give_up(running))
            raise
        if not ended:
            raise Internal("The server ended the step without its last message.", "NO_DONE")

    def stop_choice(self, running: Running, choice: int) -> None:
        """Ends a choice whose stop string was found; in the background."""
        self._in_background(self._stop_choice(running, choice))

    async def _stop_choice(self, running: Running, choice: int) -> None:
        stop = common_pb2.FINISH_REASON_STOP
        try:
            await self._abort(running, choice=choice, reason=stop)
        except ImpalaError as error:
            # The choice then runs to its own end: slower, not wrong.
            log.warning("a choice could not be stopped", extra={"reason": error.reason})

    async def _give_up(self, running: Running) -> None:
        """After a step was closed before anything was heard. Its server ends it by a report, if it
        has ever heard of it; else there is only the grant to give back."""
        with contextlib.suppress(ImpalaError):
            if not await self._abort(running):
                self._placing.release(running.placement, "NOT_STARTED")

    async def _abort(self, running: Running, **what: Any) -> bool:
        """Whether there was something to end."""
        stub = self._channels.stub(modelserver_pb2_grpc.ModelServerStub, running.placement.address)
        request = modelserver_pb2.AbortRequest(step_id=running.step_id, **what)
        answer = await call(stub.Abort, request, timeout_s=ABORT_WITHIN_S)
        return answer.found

    def _in_background(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._aborts.add(task)
        task.add_done_callback(self._aborts.discard)

    async def aclose(self) -> None:
        await asyncio.gather(*self._aborts, return_exceptions=True)


def is_retryable(error: ImpalaError) -> bool:
    """Nothing is wrong with the step itself: another server or a fresh grant may do it."""
    if isinstance(error, FailedPrecondition):
        return error.reason in ("WEIGHTS_TOO_OLD", "GRANT_EXPIRED", "WRONG_MODEL")
    if isinstance(error, ResourceExhausted):
        return error.reason == "QUEUE_FULL"
    if isinstance(error, AlreadyExists):
        return error.reason == "STEP_RUNNING"
    return isinstance(error, Aborted) or is_servers_end(error)


def is_servers_end(error: ImpalaError) -> bool:
    """The server is gone or going, or the way to it broke."""
    return was_cut(error) or isinstance(error, Unavailable)


def _is_loss(error: ImpalaError) -> bool:
    """The server's end, and not this router's own closing of its connections."""
    return is_servers_end(error) and error.reason != "CHANNEL_CLOSED"


def _is_grants_fault(error: ImpalaError) -> bool:
    return isinstance(error, Aborted) or error.reason == "GRANT_EXPIRED"
