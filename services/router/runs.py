"""Runs: executions of batches, written by the fleets' leaders; read here."""

from __future__ import annotations

from typing import NamedTuple

from libs.cluster.client import EtcdClient
from libs.cluster.entry import Entry
from libs.cluster.ops import Get
from libs.records import keys
from libs.records.batch import BatchRecord, RunRecord
from services.router.core.paging import check_after
from services.router.domain_errors import NoSuchRun
from services.router.records import decode, list_page, load
from services.router.views import batch_status

_RUNS_A_TXN = 50


class RunState(NamedTuple):
    run: RunRecord
    status: str
    """Of the run's batch."""


class RunPage(NamedTuple):
    states: list[RunState]
    has_more: bool


class Runs:
    def __init__(self, client: EtcdClient) -> None:
        self._client = client

    async def get(self, account: str, run_id: str) -> RunState:
        """Raises NoSuchRun."""
        if "/" in run_id or not run_id or not run_id.isprintable():
            raise NoSuchRun(run_id)
        stored = await load(self._client, keys.run(run_id), RunRecord)
        if stored is None or stored.record.account != account:
            raise NoSuchRun(run_id)
        return (await self._with_status([stored.record]))[0]

    async def page(self, account: str, *, limit: int, after: str, job_id: str) -> RunPage:
        """Newest first; of one job if it is named. Raises BadRequest naming `after`."""
        page = await list_page(
            self._client,
            keys.RUNS,
            RunRecord,
            limit=limit,
            after=check_after(after, "run-"),
            keep=lambda run: run.account == account and (not job_id or run.job_id == job_id),
        )
        return RunPage(await self._with_status(page.records), page.has_more)

    async def _with_status(self, runs: list[RunRecord]) -> list[RunState]:
        states: list[RunState] = []
        for at in range(0, len(runs), _RUNS_A_TXN):
            part = runs[at : at + _RUNS_A_TXN]
            gets = [
                Get(key)
                for run in part
                for key in (keys.batch(run.account, run.batch_id), keys.cancel(run.batch_id))
            ]
            reads = (await self._client.txn([], gets)).reads
            states += [
                RunState(run, _status(run, reads[2 * i], reads[2 * i + 1]))
                for i, run in enumerate(part)
            ]
        return states


def _status(run: RunRecord, batches: tuple[Entry, ...], intents: tuple[Entry, ...]) -> str:
    if not batches:
        return run.outcome or "in_progress"
    record = decode(batches[0], BatchRecord)
    return batch_status(record, 0 if intents else None)
