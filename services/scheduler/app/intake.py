"""Moves new batches on: a router validates and indexes the file, then the batch fails or begins."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from libs.clock import Clock
from libs.cluster.ops import Delete, Op
from libs.errors import (
    DataLoss,
    FailedPrecondition,
    ImpalaError,
    InvalidArgument,
    NotFound,
    PermissionDenied,
)
from libs.objects.errors import PASSING_REASONS
from libs.records import keys
from libs.records.batch import BatchError, BatchRecord, FileRecord, Job, LedgerRecord, RunRecord
from libs.records.ids import fleet_name
from services.scheduler.app.views import BatchHead, ClusterViews
from services.scheduler.app.writer import GuardedWriter, put_record
from services.scheduler.ports import BatchRouters, IndexAsk, Indexed

log = logging.getLogger(__name__)

OBJECT_NOT_FOUND = "OBJECT_NOT_FOUND"
"""The reason of an ImpalaError: the object store does not have what was asked for."""

VALIDATING = "validating"

Move = tuple[BatchRecord, list[Op]]
"""A batch's next record, and what is written with it."""

_FINAL = (NotFound, InvalidArgument, FailedPrecondition, PermissionDenied, DataLoss)
_PASSING = PASSING_REASONS | {"CLUSTER_UNAVAILABLE"}
"""Reasons that are no fault of the file or the router: they use up no attempts."""


@dataclass(frozen=True, slots=True)
class IntakeSettings:
    at_once: int = 4
    """Files indexed at the same time."""
    max_attempts: int = 8
    """Of indexing one file, before the batch fails."""
    retry_s: float = 0.5
    max_retry_s: float = 10.0
    look_every_s: float = 0.25
    overdue_s: float = 30.0
    """What the validation of a batch that has expired may still take, so that the run can name
    every line as expired."""


class Intake:
    """The work of the intake leader, the one writer of batches that are validating."""

    def __init__(
        self,
        writer: GuardedWriter,
        views: ClusterViews,
        routers: BatchRouters,
        clock: Clock,
        settings: IntakeSettings | None = None,
    ) -> None:
        self._writer = writer
        self._views = views
        self._routers = routers
        self._clock = clock
        self._settings = settings or IntakeSettings()
        self._slots = asyncio.Semaphore(self._settings.at_once)
        self._known: set[str] = set()

    async def run(self) -> None:
        """While this process leads. Raises LeadershipLost."""
        batches = self._views.batches
        async with asyncio.TaskGroup() as group:
            while True:
                version = batches.version
                new = [
                    head
                    for head in batches.all().values()
                    if head.status == VALIDATING and head.id not in self._known
                ]
                for head in sorted(new, key=lambda head: head.id):
                    self._known.add(head.id)
                    group.create_task(self._validate(head))
                await batches.changed(version)

    async def _validate(self, head: BatchHead) -> None:
        try:
            batch = await self._writer.read(keys.batch(head.account, head.id), BatchRecord)
            if batch is not None and batch.status == VALIDATING:
                moved, more = await self._unless_stopped(batch)
                record = put_record(keys.batch(batch.account, batch.id), moved)
                await self._writer.commit([record, *more])
        finally:
            self._known.discard(head.id)

    async def _unless_stopped(self, batch: BatchRecord) -> Move:
        """Where the batch goes next: to its end if it is cancelled, or is long expired, before that
        is decided."""
        task = asyncio.create_task(self._decide(batch))
        give_up_at: float | None = None
        try:
            while not task.done():
                now = self._clock.now()
                if give_up_at is None and self._expired(batch):
                    give_up_at = now + self._settings.overdue_s
                if self._cancelled(batch) or (give_up_at is not None and now >= give_up_at):
                    return self._end_early(batch)
                await asyncio.wait([task], timeout=self._settings.look_every_s)
            return await task
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait([task])

    def _cancelled(self, batch: BatchRecord) -> bool:
        return self._views.cancels.get(batch.id) is not None

    def _expired(self, batch: BatchRecord) -> bool:
        return batch.expires_at is not None and self._clock.time() >= batch.expires_at

    async def _decide(self, batch: BatchRecord) -> Move:
        try:
            indexed = await self._index(batch)
            if indexed.faults:
                errors = [
                    BatchError(code=f.code, message=f.message, param=f.param, line=f.line)
                    for f in indexed.faults
                ]
                return self._fail(batch, errors)
            job = await self._writer.read(keys.job(indexed.job_id), Job)
            if job is None:
                raise NotFound(f"The job '{indexed.job_id}' does not exist.", "JOB_NOT_FOUND")
        except ImpalaError as error:
            return self._fail(batch, [_told(batch, error)])
        return self._begin(batch, indexed, job, await self._fleet(batch, job))

    async def _index(self, batch: BatchRecord) -> Indexed:
        """Raises the last ImpalaError when it never went well. While the object store or etcd is
        away from the router it waits: for as long as the batch may, see `_unless_stopped`."""
        file = await self._writer.read(keys.file(batch.account, batch.input_file_id), FileRecord)
        ask = IndexAsk(
            run_id=batch.run_id,
            epoch=self._writer.epoch,
            account=batch.account,
            input_object=keys.file_object(batch.account, batch.input_file_id),
            endpoint=batch.endpoint,
            job_id=batch.job_id,
            index_object=keys.index_object(batch.run_id),
            input_bytes=file.bytes if file else 0,
            input_digest=file.digest if file else "",
        )
        wait_s = self._settings.retry_s
        failures = 0
        for attempt in itertools.count(1):
            address = await self._some_router(attempt)
            try:
                async with self._slots:
                    return await self._routers.index(address, ask)
            except ImpalaError as error:
                if error.reason not in _PASSING:
                    failures += 1
                    if isinstance(error, _FINAL) or failures == self._settings.max_attempts:
                        raise
                fields = {"batch": batch.id, "router": address, "why": error.message}
                log.warning("indexing is tried again", extra=fields)
            await self._clock.sleep(wait_s)
            wait_s = min(self._settings.max_retry_s, 2 * wait_s)
        raise AssertionError("attempts are counted without end")

    async def _some_router(self, attempt: int) -> str:
        """Another one each time; waits while there is none."""
        while not (addresses := sorted(self._views.router_addresses().values())):
            await self._views.any_change(self._settings.look_every_s, self._views.routers)
        return addresses[attempt % len(addresses)]

    async def _fleet(self, batch: BatchRecord, job: Job) -> str:
        """Waits while no server of the job's model was ever seen: it may just be loading. To end
        the run of a batch that has expired, its fleet's leader needs none."""
        if (fleet := self._views.fleet_of_job(job)) is None:
            log.info("no server of the model yet", extra={"batch": batch.id, "model": job.model})
        while fleet is None and not self._expired(batch):
            await self._views.any_change(self._settings.look_every_s, self._views.servers)
            fleet = self._views.fleet_of_job(job)
        return fleet or fleet_name(job.model, job.precision or "unserved")

    def _begin(self, batch: BatchRecord, indexed: Indexed, job: Job, fleet: str) -> Move:
        now = self._clock.time()
        run = RunRecord(
            id=batch.run_id,
            batch_id=batch.id,
            account=batch.account,
            job_id=job.id,
            fleet=fleet,
            model=job.model,
            endpoint=batch.endpoint,
            input_object=keys.file_object(batch.account, batch.input_file_id),
            index_object=keys.index_object(batch.run_id),
            index_digest=indexed.index_digest,
            total=indexed.lines,
            ledger=LedgerRecord(price_per_engine_hour=job.price_per_engine_hour),
            created_at=int(now),
            started_at=now,
        )
        begun = msgspec.structs.replace(
            batch,
            status="in_progress",
            job_id=job.id,
            fleet=fleet,
            model=job.model,
            in_progress_at=int(now),
        )
        return begun, [put_record(keys.run(run.id), run)]

    def _fail(self, batch: BatchRecord, errors: Sequence[BatchError]) -> Move:
        failed = msgspec.structs.replace(
            batch, status="failed", errors=list(errors), failed_at=int(self._clock.time())
        )
        return failed, self._closing(batch)

    def _end_early(self, batch: BatchRecord) -> Move:
        """Nothing was executed: no run, no lines, no files."""
        now = int(self._clock.time())
        asked_at = self._views.cancels.get(batch.id)
        if asked_at is None:
            ended = msgspec.structs.replace(batch, status="expired", expired_at=now)
        else:
            ended = msgspec.structs.replace(
                batch, status="cancelled", cancelling_at=int(asked_at), cancelled_at=now
            )
        return ended, self._closing(batch)

    def _closing(self, batch: BatchRecord) -> list[Op]:
        return [
            Delete(keys.file_ref(batch.input_file_id, batch.id)),
            Delete(keys.cancel(batch.id)),
        ]


def _told(batch: BatchRecord, error: ImpalaError) -> BatchError:
    """What the batch's owner is told; the key of an object that is gone is for the log only."""
    message = error.message
    if error.reason == OBJECT_NOT_FOUND:
        log.error("a batch's input is gone", extra={"batch": batch.id, "why": message})
        message = "The content of the batch's input file is lost."
    return BatchError(code=error.reason.lower(), message=message)
