"""The state of one fleet: its servers, who waits, who holds which place.

Written by the fleet's leader only, from one task. Methods change the state; `dispatch` is the only
one that grants. `now` is monotonic seconds and never goes back.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from libs.hashing import BLOCK_TOKENS
from services.scheduler.core.admission import (
    AdmissionLimits,
    Candidate,
    blocks_needed,
    capacity,
)
from services.scheduler.core.decision import Decision, DecisionHistory
from services.scheduler.core.grants import Grant, GrantTable
from services.scheduler.core.order import WaitingSteps
from services.scheduler.core.placement import place
from services.scheduler.core.prefix_index import PrefixIndex
from services.scheduler.core.server import Server
from services.scheduler.core.step import Step


@dataclass(frozen=True, slots=True)
class FleetLimits:
    admission: AdmissionLimits = field(default_factory=AdmissionLimits)
    start_within_s: float = 30.0
    """Time a granted step has to start on its server."""
    grace_s: float = 5.0
    """After that, until an unreported grant on a server without work is given up."""
    forget_after_s: float = 3600.0
    """After its time to start, until an unreported grant is given up whatever the server says."""
    prefix_blocks: int = 131_072
    decisions: int = 4096


class FleetState:
    def __init__(self, epoch: int, limits: FleetLimits | None = None) -> None:
        self.limits = limits or FleetLimits()
        self.servers: dict[str, Server] = {}
        self.waiting = WaitingSteps()
        self.grants = GrantTable(epoch, self.limits.start_within_s)
        self.prefixes = PrefixIndex(self.limits.prefix_blocks)
        self.history = DecisionHistory(self.limits.decisions)
        self._unknown: dict[str, int] = {}

    # Servers

    def server_seen(self, server: Server) -> list[Grant]:
        """A new description. Returns grants that are void because the server was started anew."""
        before = self.servers.get(server.member_id)
        void: list[Grant] = []
        if before is not None and before.incarnation != server.incarnation:
            void = self.server_gone(server.member_id)
        self.servers[server.member_id] = server
        places = self.grants.places(server.member_id)
        self._unknown[server.member_id] = places.unknown(server.occupied)
        return void

    def server_gone(self, member_id: str) -> list[Grant]:
        """Its grants are void; their steps fail at their routers, which ask again."""
        self.servers.pop(member_id, None)
        self._unknown.pop(member_id, None)
        return self.grants.remove_member(member_id)

    @property
    def serving(self) -> bool:
        return any(server.serving for server in self.servers.values())

    def capacity(self) -> int:
        """Sequences that may be granted over all serving servers; 0 = nobody serves."""
        admission = self.limits.admission
        return sum(capacity(s, admission) for s in self.servers.values() if s.serving)

    def load(self, member_id: str) -> int:
        """Sequences a server was granted and, as of its last description, has beside them."""
        occupied = self.servers[member_id].occupied
        return self.grants.places(member_id).load(occupied) + self._unknown[member_id]

    # Steps

    def held(self, step: Step, now: float) -> Grant | None:
        """The grant that the step has already. One that is of no use to it, because its time to
        start is over or its server has refused it, is taken back."""
        grant = self.grants.of_step(step.step_id)
        if grant is None:
            return None
        if grant.expires_at <= now or grant.member_id == step.exclude_member:
            self.grants.remove(grant.grant_id)
            return None
        return grant

    def ask(self, step: Step) -> None:
        """The step waits for a grant; it must hold none (`held`). Asking twice is asking once."""
        assert self.grants.of_step(step.step_id) is None
        if step.step_id not in self.waiting:
            self.waiting.push(step)

    def queue_full(self) -> bool:
        return len(self.waiting) >= self.limits.admission.max_queue

    def withdraw(self, step_id: str) -> None:
        """Nobody waits for the step's grant any more."""
        self.waiting.remove(step_id)

    def dispatch(self, now: float) -> list[Grant]:
        """Grants in order until the first step in turn finds no place: nobody overtakes it, so a
        large step is not starved by small ones."""
        granted: list[Grant] = []
        while (step := self.waiting.first()) is not None:
            candidates = self._candidates(step)
            decision = place(step, candidates, now)
            if not decision.chosen:
                break
            self.waiting.remove(step.step_id)
            chosen = next(c for c in candidates if c.server.member_id == decision.chosen)
            granted.append(self._grant(step, chosen, decision, now))
        return granted

    def release(self, grant_id: str) -> Grant | None:
        """A grant that was not used."""
        return self.grants.remove(grant_id)

    def finished(self, member_id: str, grant_id: str, hashes: Iterable[bytes]) -> Grant | None:
        """A step ended on the server and left these blocks there. Its grant, if that is known."""
        server = self.servers.get(member_id)
        if server is not None:
            self.prefixes.add(hashes, server.incarnation)
        grant = self.grants.remove(grant_id) if grant_id else None
        if server is not None and grant is None:
            self._unknown[member_id] = max(0, self._unknown[member_id] - 1)
        return grant

    def tick(self, now: float) -> list[Grant]:
        """Gives up grants that were never used; returns them."""
        given_up: list[Grant] = []
        for member_id, server in self.servers.items():
            self.grants.age(member_id, now)
            idle = server.occupied == 0
            limit = self.limits.grace_s if idle else self.limits.forget_after_s
            # An idle description says nothing of steps that could still start after it was made.
            seen = server.seen_at if idle else now
            given_up += self.grants.forget_overdue(member_id, min(now, seen) - limit)
        return given_up

    # Views

    def active_traces(self) -> int:
        """Traces with a step granted or waiting; a step without a trace is its own."""
        steps = [*(grant.step for grant in self.grants), *self.waiting]
        return len({step.trace_id or step.step_id for step in steps})

    def granted_of_run(self, run_id: str) -> int:
        return sum(1 for grant in self.grants if grant.step.run_id == run_id)

    def check_integrity(self) -> None:
        """Raises AssertionError on a state that no sequence of calls may lead to."""
        self.grants.check_integrity()
        for grant in self.grants:
            assert grant.step.step_id not in self.waiting, "a step waits and holds a grant"
            server = self.servers.get(grant.member_id)
            assert server is not None and server.incarnation == grant.incarnation
        assert len(self.prefixes) <= self.limits.prefix_blocks
        assert len(self.history) <= self.limits.decisions

    def _candidates(self, step: Step) -> list[Candidate]:
        matches = self.prefixes.matches(step.hashes)
        admission = self.limits.admission
        candidates = []
        for server in self.servers.values():
            cached = min(
                matches.get(server.incarnation, 0) * BLOCK_TOKENS, max(0, step.prompt_tokens - 1)
            )
            candidates.append(
                Candidate(
                    server=server,
                    load=self.load(server.member_id),
                    reserved_blocks=self.grants.places(server.member_id).blocks,
                    cached_tokens=cached,
                    blocks=blocks_needed(step, server.block_tokens, cached, admission),
                    capacity=capacity(server, admission),
                )
            )
        return candidates

    def _grant(self, step: Step, chosen: Candidate, decision: Decision, now: float) -> Grant:
        server = chosen.server
        grant = Grant(
            grant_id=self.grants.next_id(),
            step=step,
            member_id=server.member_id,
            incarnation=server.incarnation,
            address=server.address,
            epoch=self.grants.epoch,
            weight_seq=server.weight_seq,
            blocks=chosen.blocks,
            cached_tokens=chosen.cached_tokens,
            issued_at=now,
            expires_at=now + self.limits.start_within_s,
        )
        self.grants.add(grant)
        self.prefixes.add(step.hashes, server.incarnation)
        self.history.add(decision)
        return grant
