"""Follows the fleet's members and the state of each, and tells desk and ledger."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Collection
from dataclasses import replace

from libs.clock import Clock
from libs.errors import ImpalaError
from libs.records.members import ModelServerInfo
from services.scheduler.app.desk import GrantDesk
from services.scheduler.app.views import ClusterViews
from services.scheduler.core.ledger import Clocks
from services.scheduler.core.server import UNREACHABLE
from services.scheduler.ports import ModelServers

log = logging.getLogger(__name__)

RETRY_S = 0.5

OnClocks = Callable[[str, Clocks], None]
"""(incarnation, clocks)"""
OnAlive = Callable[[Collection[str]], None]
"""(incarnations of all members)"""


class ServerWatcher:
    """One task follows the members, one each of them. A member without a state stream is granted
    nothing; a member that left is forgotten with its grants."""

    def __init__(
        self,
        fleet: str,
        views: ClusterViews,
        servers: ModelServers,
        desk: GrantDesk,
        on_clocks: OnClocks,
        on_alive: OnAlive,
        clock: Clock,
    ) -> None:
        self._fleet = fleet
        self._views = views
        self._servers = servers
        self._desk = desk
        self._on_clocks = on_clocks
        self._on_alive = on_alive
        self._clock = clock
        self._tasks: dict[str, tuple[str, asyncio.Task[None]]] = {}

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            while True:
                version = self._views.servers.version
                self._follow(group, self._views.model_servers(self._fleet))
                await self._views.servers.changed(version)

    def _follow(self, group: asyncio.TaskGroup, members: dict[str, ModelServerInfo]) -> None:
        self._desk.expect(members)
        self._on_alive({info.incarnation for info in members.values()})
        for member_id, (address, task) in list(self._tasks.items()):
            if member_id not in members or members[member_id].address != address:
                task.cancel()
                del self._tasks[member_id]
        for member_id, info in members.items():
            if member_id not in self._tasks:
                task = group.create_task(self._watch(member_id, info.address))
                self._tasks[member_id] = (info.address, task)

    async def _watch(self, member_id: str, address: str) -> None:
        silence = _Silence(member_id)
        while True:
            why = "another process has its address"
            try:
                reports = self._servers.watch(address)
                async with contextlib.aclosing(reports):  # type: ignore[type-var]
                    async for report in reports:
                        if report.server.member_id != member_id:
                            break
                        silence.broken()
                        self._desk.server_seen(report.server)
                        self._on_clocks(report.server.incarnation, report.clocks)
            except ImpalaError as error:
                why = str(error)
            silence.goes_on(why)
            self._stop_granting(member_id)
            await self._clock.sleep(RETRY_S)

    def _stop_granting(self, member_id: str) -> None:
        known = self._desk.state.servers.get(member_id)
        if known is not None and known.phase != UNREACHABLE:
            self._desk.server_seen(replace(known, phase=UNREACHABLE))


class _Silence:
    """Logs that a server is not heard from, and that it is again: once each."""

    def __init__(self, member_id: str) -> None:
        self._member_id = member_id
        self._lasts = False

    def goes_on(self, why: str) -> None:
        if not self._lasts:
            self._lasts = True
            log.warning("no state from a server", extra={"member": self._member_id, "why": why})

    def broken(self) -> None:
        if self._lasts:
            self._lasts = False
            log.info("a server tells its state again", extra={"member": self._member_id})
