"""What the scheduler watches in etcd, one live view of each kind for all its leaders."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Self, TypeVar

import msgspec

from libs.cluster.client import EtcdClient
from libs.cluster.entry import Entry
from libs.cluster.errors import RecordUnreadable
from libs.cluster.follower import Following
from libs.cluster.members import Members
from libs.cluster.view import View
from libs.records import keys
from libs.records.batch import TERMINAL, Job
from libs.records.members import ModelServerInfo, RouterInfo, SchedulerInfo

T = TypeVar("T")
Info = TypeVar("Info", ModelServerInfo, RouterInfo, SchedulerInfo)


class BatchHead(msgspec.Struct, frozen=True):
    """The part of a BatchRecord that decides who works on it."""

    id: str
    account: str
    run_id: str
    status: str
    fleet: str = ""


class RunHead(msgspec.Struct, frozen=True):
    id: str
    fleet: str
    ended_at: int | None = None


class ClusterViews:
    """`async with ClusterViews(client) as views`. In an outage of etcd the last state stays."""

    def __init__(self, client: EtcdClient) -> None:
        self.batches: View[BatchHead] = View(client, keys.BATCHES, _decoder(BatchHead))
        self.runs: View[RunHead] = View(client, keys.RUNS, _decoder(RunHead))
        self.jobs: View[Job] = View(client, keys.JOBS, _decoder(Job))
        self.cancels: View[float] = View(client, keys.CANCELS, _cancel_time)
        self.servers = Members(client, "modelserver")
        self.routers = Members(client, "router")
        self.schedulers = Members(client, "scheduler")
        self._exits = AsyncExitStack()

    async def __aenter__(self) -> Self:
        following: tuple[Following, ...] = (
            self.batches,
            self.runs,
            self.jobs,
            self.cancels,
            self.servers,
            self.routers,
            self.schedulers,
        )
        async with AsyncExitStack() as exits:
            for view in following:
                await exits.enter_async_context(view)
            self._exits = exits.pop_all()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.aclose()

    async def start(self) -> None:
        """Returns once all views are filled; ClusterUnavailable if etcd does not answer."""
        await self.__aenter__()

    async def aclose(self) -> None:
        await self._exits.aclose()

    def model_servers(self, fleet: str) -> dict[str, ModelServerInfo]:
        """By member id; whatever their phase."""
        return {
            member_id: info
            for member_id, info in _infos(self.servers, ModelServerInfo)
            if info.fleet == fleet
        }

    def router_addresses(self) -> dict[str, str]:
        """Member id -> gRPC address of each live router."""
        return {member_id: info.address for member_id, info in _infos(self.routers, RouterInfo)}

    def scheduler_address(self, member_id: str) -> str:
        """Empty when it is not live."""
        infos = dict(_infos(self.schedulers, SchedulerInfo))
        return infos[member_id].address if member_id in infos else ""

    def fleet_of_model(self, model: str, precision: str = "") -> str | None:
        """The fleet of a live server of the model; of several the first by name."""
        fleets = {
            info.fleet
            for _, info in _infos(self.servers, ModelServerInfo)
            if info.model == model and precision in ("", info.precision)
        }
        return min(fleets, default=None)

    def fleet_of_job(self, job: Job) -> str | None:
        return job.fleet or self.fleet_of_model(job.model, job.precision)

    def fleets(self) -> set[str]:
        """Every fleet that has a server, a job or work."""
        found = {info.fleet for _, info in _infos(self.servers, ModelServerInfo)}
        found |= {job.fleet for job in self.jobs.all().values()}
        found |= {
            batch.fleet for batch in self.batches.all().values() if batch.status not in TERMINAL
        }
        return found - {""}

    async def any_change(self, at_most_s: float, *views: Following) -> None:
        """Returns when one of the views changed, or after so many seconds."""
        waits = [asyncio.ensure_future(view.changed(view.version)) for view in views]
        try:
            await asyncio.wait(waits, timeout=at_most_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
            await asyncio.gather(*waits, return_exceptions=True)


def _infos(members: Members, kind: type[Info]) -> Iterator[tuple[str, Info]]:
    """Members whose info this version can read; another version's are left out."""
    for member_id, member in members.current().items():
        try:
            yield member_id, msgspec.convert(dict(member.info), kind)
        except msgspec.ValidationError:
            continue


def _decoder(kind: type[T]) -> Callable[[Entry], T]:
    decoder = msgspec.json.Decoder(kind)

    def decode(entry: Entry) -> T:
        try:
            return decoder.decode(entry.value)
        except msgspec.MsgspecError as error:
            raise RecordUnreadable(f"{entry.key} cannot be read: {error}") from error

    return decode


def _cancel_time(entry: Entry) -> float:
    try:
        return float(entry.value)
    except ValueError as error:
        raise RecordUnreadable(f"{entry.key} is not a time: {error}") from error
