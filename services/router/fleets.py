"""What the cluster offers now: live model servers by model, and who leads each fleet.

Read from watched views only, so asking costs nothing and goes on working while etcd is away.
"""

from __future__ import annotations

import asyncio
import logging
from typing import NamedTuple, TypeVar

import msgspec
import orjson

from libs.cluster.client import EtcdClient
from libs.cluster.entry import Entry
from libs.cluster.errors import RecordUnreadable
from libs.cluster.member import Member
from libs.cluster.members import Members
from libs.cluster.view import View
from libs.records import keys
from libs.records.members import ModelServerInfo, SchedulerInfo

log = logging.getLogger(__name__)

SERVING = "serving"

_T = TypeVar("_T", ModelServerInfo, SchedulerInfo)


class Server(NamedTuple):
    """A live model server that takes steps."""

    member_id: str
    info: ModelServerInfo


class Fleets:
    """Owner of the views; `start` before use."""

    def __init__(self, client: EtcdClient) -> None:
        self._servers = Members(client, "modelserver")
        self._schedulers = Members(client, "scheduler")
        self._leaders: View[str] = View(client, keys.ELECTIONS, _candidate)

    async def start(self) -> None:
        """Returns once all views are filled; ClusterUnavailable if etcd does not answer."""
        for view in (self._servers, self._schedulers, self._leaders):
            await view.start()

    async def aclose(self) -> None:
        for view in (self._servers, self._schedulers, self._leaders):
            await view.aclose()

    def servers(self, model: str | None = None) -> list[Server]:
        """Those that serve now, of one model if it is named; by member id."""
        found = []
        for member_id, member in sorted(self._servers.current().items()):
            info = _read(member, ModelServerInfo)
            if info is not None and info.phase == SERVING and model in (None, info.model):
                found.append(Server(member_id, info))
        return found

    def models(self) -> dict[str, ModelServerInfo]:
        """One server's word for each served model: that of the newest weights."""
        found: dict[str, ModelServerInfo] = {}
        for server in self.servers():
            known = found.get(server.info.model)
            if known is None or server.info.weight_seq > known.weight_seq:
                found[server.info.model] = server.info
        return found

    def leader_address(self, fleet: str) -> str | None:
        """host:port of the scheduler that leads the fleet, None while nobody is known to."""
        candidate = self._leaders.get(f"{keys.fleet_election(fleet)}/leader")
        member = self._schedulers.current().get(candidate or "")
        info = None if member is None else _read(member, SchedulerInfo)
        return None if info is None else info.address

    async def changed(self, within_s: float) -> None:
        """Returns when a leader or a member changed, or after `within_s` seconds."""
        views = (self._servers, self._schedulers, self._leaders)
        waits = [asyncio.create_task(view.changed(view.version)) for view in views]
        try:
            await asyncio.wait(waits, timeout=within_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
            await asyncio.gather(*waits, return_exceptions=True)

    async def wait_for_model(self, model: str, within_s: float) -> list[Server]:
        """The model's servers as soon as there is one; empty after `within_s` seconds."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + within_s
        while not (found := self.servers(model)) and loop.time() < deadline:
            await self.changed(deadline - loop.time())
        return found


def _read(member: Member, kind: type[_T]) -> _T | None:
    try:
        return msgspec.convert(dict(member.info), kind)
    except msgspec.ValidationError as error:
        log.warning("member %s says what cannot be read: %s", member.id, error)
        return None


def _candidate(entry: Entry) -> str:
    try:
        return str(orjson.loads(entry.value)["candidate"])
    except (ValueError, KeyError, TypeError) as error:
        raise RecordUnreadable(f"{entry.key} names no leader: {error}") from error
