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
from services.scheduler.app.run_log import FAILED, RunLog, failed_batch
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

_UNANSWERED_CODE = {
    EXPIRED: error_line.EXPIRED,
    CANCELLED: error_line.CANCELLED,
    FAILED: error_line.RUN_FAILED,
}


class Finalizer:
    def __init__(self, run: RunLog, source: RunInput, storage: RunStorage, clock: Clock) -> None:
        self._run = run
        self._input = source
        self._storage = storage
        self._clock = clock
        self._outputs = LineSet()
        """Lines of the output file."""
        self._recorded_errors = 0
        self._unanswered = 0

    async def finish(self, use: RunUse, cancel_at: Callable[[], int | None]) -> None:
        """To be called once the outcome is fixed (`RunLog.begin_finalizing`, `begin_failing`).
        cancel_at tells when a cancel was asked for: a run that would have ended as completed then
        ends as cancelled, with all its lines. RunBroken when the files cannot be made."""
        record = self._run.record
        output = await self._output_file() if record.completed else None
        completed = len(self._outputs)
        errors = await self._error_file() if completed < record.total else None
        self._check(has_error_file=errors is not None)
        # The clock may have been set back meanwhile; a batch ends after it began.
        began = max(int(record.started_at), self._run.batch.finalizing_at or 0)
        now = max(int(self._clock.time()), began)
        cancelled_at = cancel_at()
        cancelled = cancelled_at is not None and record.outcome == COMPLETED
        ended = msgspec.structs.replace(
            record,
            outcome=CANCELLED if cancelled else record.outcome,
            completed=completed,
            failed=record.total - completed,
            unanswered=record.total - completed - self._recorded_errors,
            output_file_id=output.id if output else "",
            error_file_id=errors.id if errors else "",
            ledger=self._run.ledger(use),
            ended_at=now,
        )
        batch = _ended(self._run.batch, ended, now, cancelled_at)
        puts: list[Op] = [
            put_record(keys.file(file.account, file.id), file) for file in (output, errors) if file
        ]
        await self._run.end(batch, ended, puts)
        log.info("run ended", extra={"run": record.id, "outcome": ended.outcome})

    def _check(self, has_error_file: bool) -> None:
        """RunBroken unless the files have every line; a run that failed may have fewer outputs than
        were recorded, and an error file only if its index and its input can be read."""
        record = self._run.record
        outputs, errors = len(self._outputs), self._recorded_errors + self._unanswered
        failed = record.outcome == FAILED
        lost = outputs < record.completed and not failed
        unnamed = outputs + errors != record.total and not (failed and not has_error_file)
        if lost or unnamed:
            raise RunBroken(
                "The run's recorded results are damaged.",
                f"{record.total} lines have {outputs} outputs and {errors} errors; "
                f"{record.completed} outputs were recorded.",
            )

    async def _output_file(self) -> FileRecord | None:
        """None if no output can be read."""
        file = await self._file(self._run.record.output_file_id, "output", self._output_lines)
        return file if len(self._outputs) else None

    async def _error_file(self) -> FileRecord | None:
        """None if the run failed and its lines cannot be named."""
        try:
            return await self._file(self._run.record.error_file_id, "error", self._error_lines)
        except RunBroken as broken:
            if self._run.record.outcome != FAILED:
                raise
            fields = {"run": self._run.record.id, "why": broken.why, "detail": broken.detail}
            log.error("a failed run gets no error file", extra=fields)
            return None

    async def _file(self, file_id: str, kind: str, lines: LineSource) -> FileRecord:
        batch = self._run.batch
        key, what = keys.file_object(batch.account, file_id), f"The batch's {kind} file"
        written = await self._storage.write_lines(key, lines, what)
        created_at = int(self._clock.time())
        lives_s = batch.output_expires_after_s
        return FileRecord(
            id=file_id,
            account=batch.account,
            bytes=written.size,
            digest=written.hex(),
            filename=f"{batch.id}_{kind}.jsonl",
            purpose="batch_output",
            created_at=created_at,
            expires_at=None if lives_s is None else created_at + lives_s,
        )

    async def _output_lines(self) -> AsyncIterator[bytes]:
        self._outputs = LineSet()
        async for line in self._run.recorded():
            if line.kind == "output":
                self._outputs.add(line.line)
                yield bytes(line.record)

    async def _error_lines(self) -> AsyncIterator[bytes]:
        """Recorded errors, then the lines that nobody answered, or whose answer is not in the
        output file: of a failed run, a segment may come or go between the files."""
        self._recorded_errors = self._unanswered = 0
        errors = LineSet()
        async for line in self._run.recorded():
            if line.kind != "output" and line.line not in self._outputs:
                errors.add(line.line)
                self._recorded_errors += 1
                yield bytes(line.record)
        code = _UNANSWERED_CODE.get(self._run.record.outcome, error_line.ENGINE)
        async for number, custom_id in self._input.lines_outside(self._outputs, errors):
            self._unanswered += 1
            yield error_line.error_line(self._run.record.id, number, custom_id, code)


def _ended(
    batch: BatchRecord, record: RunRecord, now: int, cancelled_at: int | None
) -> BatchRecord:
    ended = msgspec.structs.replace(
        batch,
        status=record.outcome,
        output_file_id=record.output_file_id or None,
        error_file_id=record.error_file_id or None,
    )
    if record.outcome == FAILED:
        return failed_batch(ended, record.error, now)
    if record.outcome == CANCELLED:
        ended.cancelling_at = now if cancelled_at is None else cancelled_at
        ended.cancelled_at = now
    elif record.outcome == EXPIRED:
        ended.expired_at = now
    else:
        ended.completed_at = now
    return ended
