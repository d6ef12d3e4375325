"""Where steps wait for their grants: futures around the fleet's state.

The one writer of its FleetState; everything here runs on the event loop and never waits, except
`acquire`, which holds nothing while it does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from libs.clock import Clock
from libs.obs import METRICS, Metrics
from services.scheduler.core.errors import NoServers, NotLeader, QueueFull
from services.scheduler.core.fleet import FleetLimits, FleetState
from services.scheduler.core.grants import Grant
from services.scheduler.core.server import Server
from services.scheduler.core.step import Step

RETRY_AFTER_S = 1.0


@dataclass(frozen=True, slots=True)
class Granted:
    grant: Grant
    expires_unix_ms: int
    valid_s: float
    waited_s: float


class GrantDesk:
    """`may_grant` is false while leadership is in doubt. Then a line of a run waits, since nobody
    but this leader could hand it out, and any other step is refused at once: its router places it.
    """

    def __init__(
        self,
        fleet: str,
        epoch: int,
        clock: Clock,
        limits: FleetLimits | None = None,
        metrics: Metrics = METRICS,
        may_grant: Callable[[], bool] = lambda: True,
    ) -> None:
        self.fleet = fleet
        self.state = FleetState(epoch, limits)
        self._clock = clock
        self._may_grant = may_grant
        self._waiters: dict[str, set[asyncio.Future[Grant]]] = {}
        self._expected: set[str] = set()
        self._closed = False
        grants = metrics.counter("impala_scheduler_grants", "Grants, by how they began.", ["fleet"])
        ended = metrics.counter(
            "impala_scheduler_grants_ended", "Grants, by how they ended.", ["fleet", "how"]
        )
        waits = metrics.histogram(
            "impala_scheduler_wait_seconds", "From asking to the grant.", ["fleet"]
        )
        queue = metrics.gauge("impala_scheduler_queued_steps", "Steps without a grant.", ["fleet"])
        held = metrics.gauge("impala_scheduler_granted_steps", "Granted, not reported.", ["fleet"])
        self._granted_total = grants.labels(fleet)
        self._ended_total = {
            how: ended.labels(fleet, how) for how in ("reported", "released", "given_up", "void")
        }
        self._wait_s = waits.labels(fleet)
        self._queued = queue.labels(fleet)
        self._held = held.labels(fleet)

    # Steps

    async def acquire(self, step: Step) -> Granted:
        """Waits for the step's grant. Cancelling gives the place up, the granted one too when its
        answer can no longer be delivered. The same step asking twice gets the same grant."""
        grant = self.state.held(step, self._clock.now())
        if grant is None:
            self._check_takes(step)
            grant = await self._wait(step)
        return self._answer(grant, step)

    def _check_takes(self, step: Step) -> None:
        if not step.run_id and not self._may_grant():
            raise self._in_doubt()
        if not self._expected and not self.state.servers:
            raise NoServers(self.fleet, RETRY_AFTER_S)
        if step.step_id not in self.state.waiting and self.state.queue_full():
            raise QueueFull(self.fleet, len(self.state.waiting), RETRY_AFTER_S)

    async def _wait(self, step: Step) -> Grant:
        waiter: asyncio.Future[Grant] = asyncio.get_running_loop().create_future()
        self._waiters.setdefault(step.step_id, set()).add(waiter)
        self.state.ask(step)
        self._dispatch()
        try:
            return await waiter
        except asyncio.CancelledError:
            self._give_up(step, waiter)
            raise
        finally:
            waiters = self._waiters.get(step.step_id)
            if waiters is not None:
                waiters.discard(waiter)
                if not waiters:
                    del self._waiters[step.step_id]

    def _give_up(self, step: Step, waiter: asyncio.Future[Grant]) -> None:
        if len(self._waiters.get(step.step_id, ())) > 1:
            return  # Another call waits for the same grant.
        self.state.withdraw(step.step_id)
        if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
            self.release(waiter.result().grant_id)
        self._dispatch()

    def _answer(self, grant: Grant, step: Step) -> Granted:
        left_s = grant.expires_at - self._clock.now()
        expires_unix_ms = int((self._clock.time() + left_s) * 1000)
        return Granted(grant, expires_unix_ms, left_s, max(0.0, grant.issued_at - step.arrived))

    def release(self, grant_id: str) -> None:
        """The grant was not used. No error when it is unknown: it was returned before."""
        if self.state.release(grant_id) is not None:
            self._ended_total["released"].inc()
            self._dispatch()

    def release_step(self, step_id: str) -> None:
        """Nobody will use the grant that the step has, if it has one."""
        grant = self.state.grants.of_step(step_id)
        if grant is not None:
            self.release(grant.grant_id)

    def finished(self, member_id: str, grant_id: str, hashes: Iterable[bytes]) -> None:
        if self.state.finished(member_id, grant_id, hashes) is not None:
            self._ended_total["reported"].inc()
        self._dispatch()

    # Servers

    def expect(self, member_ids: Iterable[str]) -> None:
        """The fleet's members: steps wait rather than being refused while one is there, even before
        its first state has arrived. Who is not among them is gone."""
        self._expected = set(member_ids)
        for member_id in self.state.servers.keys() - self._expected:
            self._void(self.state.server_gone(member_id))
        if not self._expected:
            self._refuse_all(NoServers(self.fleet, RETRY_AFTER_S))

    def server_seen(self, server: Server) -> None:
        if server.member_id in self._expected:
            self._void(self.state.server_seen(server))
            self._dispatch()

    def tick(self) -> None:
        """Gives up grants that were never used; to be called about once a second."""
        given_up = self.state.tick(self._clock.now())
        self._ended_total["given_up"].inc(len(given_up))
        self._dispatch()

    def close(self, error: Exception) -> None:
        """This process no longer leads: who waits is told."""
        self._closed = True
        self._refuse_all(error)
        self._queued.set(0)
        self._held.set(0)

    def _void(self, grants: list[Grant]) -> None:
        self._ended_total["void"].inc(len(grants))

    def _in_doubt(self) -> NotLeader:
        return NotLeader(self.fleet, "")

    def _refuse_all(self, error: Exception) -> None:
        self._refuse(self._waiters, error)

    def _refuse(self, step_ids: Iterable[str], error: Exception) -> None:
        for step_id in step_ids:
            self.state.withdraw(step_id)
            for waiter in self._waiters[step_id]:
                if not waiter.done():
                    waiter.set_exception(error)

    def _dispatch(self) -> None:
        if self._closed:
            return
        if not self._may_grant():
            free = [step.step_id for step in self.state.waiting if not step.run_id]
            self._refuse([each for each in free if each in self._waiters], self._in_doubt())
            return
        for grant in self.state.dispatch(self._clock.now()):
            self._granted_total.inc()
            self._wait_s.observe(max(0.0, grant.issued_at - grant.step.arrived))
            for waiter in self._waiters.get(grant.step.step_id, ()):
                if not waiter.done():
                    waiter.set_result(grant)
        self._queued.set(len(self.state.waiting))
        self._held.set(len(self.state.grants))
