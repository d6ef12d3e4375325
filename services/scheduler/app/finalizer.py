"""Ends a run: writes its files from the named segments and moves the batch to its last status.

Everything here may be repeated by this or another leader: file ids are fixed before, the files'
bytes follow from the segments, and the last transaction takes effect as a whole.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable

import msgspec

from libs.clock import Clock
from libs.cluster.ops import Op
from libs.records import keys
from libs.records.batch import BatchRecord, FileRecord, RunRecord
from services.scheduler.app.input import RunInput
from services.scheduler.app.run_log import RunLog
from services.scheduler.app.storage import RunBroken, RunStorage
from services.scheduler.app.writer import put_record
from services.scheduler.core import error_line
from services.scheduler.core.ledger import RunUse
from services.scheduler.core.line_set import LineSet

log = logging.getLogger(__name__)

LineSource = Callable[[], AsyncIterator[bytes]]

COMPLETED = "completed"
EXPIRED = "expired"
CANCELLED = "cancelled"

_UNANSWERED_CODE = {EXPIRED: error_line.EXPIRED, CANCELLED: error_line.CANCELLED}


class Finalizer:
    def __init__(self, run: RunLog, source: RunInput, storage: RunStorage, clock: Clock) -> None:
        self._run = run
        self._input = source
        self._storage = storage
        self._clock = clock
        self._errors = 0

    async def finish(self, use: RunUse, cancelled_at: int | None) -> None:
        """To be called once the outcome is fixed (`RunLog.begin_finalizing`). RunBroken when the
        files cannot be made."""
        record = self._run.record
        completed = record.completed
        files: list[FileRecord] = []
        if completed:
            files.append(await self._file(record.output_file_id, "output", self._outputs))
        if completed < record.total:
            files.append(await self._file(record.error_file_id, "error", self._error_lines))
            if completed + self._errors != record.total:
                raise RunBroken(
                    f"{record.total} lines have {completed} outputs and {self._errors} errors."
                )
        now = int(self._clock.time())
        ended = msgspec.structs.replace(
            record,
            failed=record.total - completed,
            unanswered=record.total - completed - record.failed,
            ledger=self._run.ledger(use),
            ended_at=now,
        )
        batch = _ended(self._run.batch, ended, now, cancelled_at)
        puts: list[Op] = [put_record(keys.file(file.account, file.id), file) for file in files]
        await self._run.end(batch, ended, puts)
        log.info("run ended", extra={"run": record.id, "outcome": record.outcome})

    async def _file(self, file_id: str, kind: str, lines: LineSource) -> FileRecord:
        batch = self._run.batch
        size = await self._storage.write_lines(keys.file_object(batch.account, file_id), lines)
        created_at = int(self._clock.time())
        lives_s = batch.output_expires_after_s
        return FileRecord(
            id=file_id,
            account=batch.account,
            bytes=size,
            filename=f"{batch.id}_{kind}.jsonl",
            purpose="batch_output",
            created_at=created_at,
            expires_at=None if lives_s is None else created_at + lives_s,
        )

    async def _outputs(self) -> AsyncIterator[bytes]:
        async for line in self._run.recorded():
            if line.kind == "output":
                yield bytes(line.record)

    async def _error_lines(self) -> AsyncIterator[bytes]:
        """Recorded errors, then the lines that nobody answered."""
        self._errors = 0
        answered = LineSet()
        async for line in self._run.recorded():
            answered.add(line.line)
            if line.kind != "output":
                self._errors += 1
                yield bytes(line.record)
        code = _UNANSWERED_CODE.get(self._run.record.outcome, error_line.ENGINE)
        async for number, custom_id in self._input.unanswered(answered):
            self._errors += 1
            yield error_line.error_line(self._run.record.id, number, custom_id, code)


def _ended(
    batch: BatchRecord, record: RunRecord, now: int, cancelled_at: int | None
) -> BatchRecord:
    ended = msgspec.structs.replace(
        batch,
        status=record.outcome,
        output_file_id=record.output_file_id if record.completed else None,
        error_file_id=record.error_file_id if record.failed else None,
    )
    if record.outcome == CANCELLED:
        ended.cancelling_at = now if cancelled_at is None else cancelled_at
        ended.cancelled_at = now
    elif record.outcome == EXPIRED:
        ended.expired_at = now
    else:
        ended.completed_at = now
    return ended
