"""Leave to run a step: a grant of the fleet's leader, or the router's own word.

The leader's answer may take as long as its queue does; only a leader that cannot be reached, or is
none any more, counts as no answer. After `patience_s` of that the router places interactive steps
itself, and says so; a line of a batch goes back to the leader, which will hand it out again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass

from impala.modelserver.v1 import modelserver_pb2
from impala.scheduler.v1 import scheduler_pb2, scheduler_pb2_grpc
from libs.errors import DeadlineExceeded, FailedPrecondition, ImpalaError, NotFound, Unavailable
from libs.rpc import call
from services.router.channels import Channels
from services.router.core.placement import Candidate, place
from services.router.domain_errors import NoServer
from services.router.fleets import Fleets

log = logging.getLogger(__name__)

RELEASE_WITHIN_S = 2.0
_RETRY_S = 0.2


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a step runs, and by whose leave."""

    address: str
    member_id: str
    grant: modelserver_pb2.Grant | None
    self_placed: str
    """Why the router placed it itself; empty with a grant."""
    min_seq: int
    trace_id: str
    leader: str
    """Address of the granting leader; empty when self-placed."""
    granted_at: float
    """By the event loop's clock."""


class Placing:
    """Owner of the count of steps this router has on each server."""

    def __init__(self, fleets: Fleets, channels: Channels, *, patience_s: float = 2.0) -> None:
        self._fleets = fleets
        self._channels = channels
        self._patience_s = patience_s
        self._load: Counter[str] = Counter()
        self._releases: set[asyncio.Task[None]] = set()

    async def acquire(
        self,
        request: scheduler_pb2.AcquireRequest,
        fleet: str,
        *,
        within_s: float,
        may_self_place: bool,
    ) -> Placement:
        """Waits for leave. Cancelling gives the place up.

        Raises the leader's refusals (queue full, no fleet), NoServer, or DeadlineExceeded.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + within_s
        patience = min(deadline, loop.time() + self._patience_s)
        why = "no scheduler leads this fleet"
        while True:
            leader = self._fleets.leader_address(fleet)
            if leader is not None:
                try:
                    return await self._ask(leader, request, deadline - loop.time())
                except (asyncio.CancelledError, DeadlineExceeded):
                    # A grant may be on its way.
                    self._release_in_background(leader, _of_step(request.step_id))
                    raise
                except ImpalaError as error:
                    if isinstance(error, Unavailable) and error.reason == "NO_SERVERS":
                        # The leader's word names the fleet, which clients do not know.
                        raise NoServer(request.model, error.retry_after_s) from error
                    if not _is_no_answer(error):
                        raise
                    why = error.message
            left = patience - loop.time()
            if left <= 0:
                break
            await self._fleets.changed(min(left, _RETRY_S))
        if loop.time() >= deadline:
            raise DeadlineExceeded("No server was granted in time.", "NOT_GRANTED")
        if not may_self_place:
            raise Unavailable(f"No scheduler answers: {why}", "NO_SCHEDULER", None, 1.0)
        return self._self_place(request, why)

    async def _ask(
        self, leader: str, request: scheduler_pb2.AcquireRequest, within_s: float
    ) -> Placement:
        stub = self._channels.stub(scheduler_pb2_grpc.SchedulerStub, leader, tunnelled=True)
        answer = await call(stub.Acquire, request, timeout_s=max(0.001, within_s))
        return Placement(
            address=answer.address,
            member_id=answer.grant.member_id,
            grant=answer.grant,
            self_placed="",
            min_seq=answer.min_seq,
            trace_id=answer.grant.trace_id or request.trace_id,
            leader=leader,
            granted_at=asyncio.get_running_loop().time(),
        )

    def _self_place(self, request: scheduler_pb2.AcquireRequest, why: str) -> Placement:
        servers = {server.member_id: server for server in self._fleets.servers(request.model)}
        others = {id_: each for id_, each in servers.items() if id_ != request.exclude_member}
        chosen = place(
            request.content_hashes,
            [Candidate(member_id, self._load[member_id]) for member_id in others or servers],
        )
        if chosen is None:
            raise NoServer(request.model)
        log.warning("placed a step itself", extra={"server": chosen.member_id, "why": why})
        return Placement(
            address=servers[chosen.member_id].info.address,
            member_id=chosen.member_id,
            grant=None,
            self_placed=why,
            min_seq=0,
            trace_id=request.trace_id,
            leader="",
            granted_at=asyncio.get_running_loop().time(),
        )

    @contextlib.asynccontextmanager
    async def counted(self, placement: Placement) -> AsyncIterator[None]:
        """Counts the step as load of its server while it runs."""
        self._load[placement.member_id] += 1
        try:
            yield
        finally:
            self._load[placement.member_id] -= 1
            if not self._load[placement.member_id]:
                del self._load[placement.member_id]

    def release(self, placement: Placement, reason: str) -> None:
        """Gives a grant back that was not used; in the background, and at most a hint."""
        grant = placement.grant
        if grant is not None:
            request = scheduler_pb2.ReleaseRequest(
                grant_id=grant.grant_id, epoch=grant.epoch, reason=reason
            )
            self._release_in_background(placement.leader, request)

    def _release_in_background(self, leader: str, request: scheduler_pb2.ReleaseRequest) -> None:
        task = asyncio.create_task(self._release(leader, request))
        self._releases.add(task)
        task.add_done_callback(self._releases.discard)

    async def _release(self, leader: str, request: scheduler_pb2.ReleaseRequest) -> None:
        stub = self._channels.stub(scheduler_pb2_grpc.SchedulerStub, leader)
        # A grant that is neither used nor given back expires by itself.
        with contextlib.suppress(ImpalaError):
            await call(stub.Release, request, timeout_s=RELEASE_WITHIN_S)

    async def aclose(self) -> None:
        await asyncio.gather(*self._releases, return_exceptions=True)


def _of_step(step_id: str) -> scheduler_pb2.ReleaseRequest:
    return scheduler_pb2.ReleaseRequest(step_id=step_id, reason="NOT_HEARD")


def _is_no_answer(error: ImpalaError) -> bool:
    """The asked one does not lead, does not know the fleet yet, or cannot be reached."""
    if isinstance(error, FailedPrecondition):
        return error.reason == "NOT_LEADER"
    if isinstance(error, NotFound):
        return error.reason == "NO_FLEET"
    return isinstance(error, Unavailable)
