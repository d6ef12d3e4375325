"""Runs: executions of batches, written by the fleets' leaders; read here."""

from __future__ import annotations

from typing import NamedTuple

from libs.cluster.client import EtcdClient
from libs.cluster.entry import Entry
from libs.records import keys
from libs.records.batch import BatchRecord, RunRecord
from services.router.core.paging import check_after
from services.router.domain_errors import NoSuchRun
from services.router.records import decode, list_page, load
from services.router.views import batch_status


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
        asked = [
            key
            for run in runs
            for key in (keys.batch(run.account, run.batch_id), keys.cancel(run.batch_id))
        ]
        found = await self._client.get_many(asked)
        return [
            RunState(run, _status(run, batch, intent))
            for run, batch, intent in zip(runs, found[::2], found[1::2], strict=True)
        ]


def _status(run: RunRecord, batch: Entry | None, intent: Entry | None) -> str:
    if batch is None:
        return run.outcome or "in_progress"
    return batch_status(decode(batch, BatchRecord), 0 if intent else None)
