"""The durable side of one run: its record, its segments, its batch's record.

The leader's executor of the run is the one writer. An outcome exists once a guarded transaction has
named its segment in the record, together with what it adds to counts, tasks and tokens; a segment
object that no record names is garbage.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field

import msgspec

from libs.cluster.ops import Delete, Op
from libs.objects import digest_of
from libs.records import keys
from libs.records.batch import (
    TERMINAL,
    BatchError,
    BatchRecord,
    LedgerRecord,
    RunRecord,
    SegmentRef,
)
from libs.records.segment import SegmentLine, decode_segment, encode_line
from libs.units.durations import DurationSketch
from services.scheduler.app.storage import RunBroken, RunStorage
from services.scheduler.app.writer import GuardedWriter, put_record
from services.scheduler.core.error_line import RUN_FAILED
from services.scheduler.core.ledger import RunUse
from services.scheduler.core.line_set import LineSet
from services.scheduler.core.task_spans import TaskSpans
from services.scheduler.core.usage import NO_USAGE, Usage

log = logging.getLogger(__name__)

FAILED = "failed"
_RESULTS = "A part of the run's recorded results"


@dataclass(frozen=True, slots=True)
class FlushPolicy:
    """When outcomes are written. The interval grows with the run's age, so that a run of days has
    some hundred segments and not one a second; what a crash repeats stays below 1 % of the run."""

    interval_s: float = 0.5
    max_interval_s: float = 60.0
    max_lines: int = 256
    max_bytes: int = 4 << 20

    def interval(self, age_s: float) -> float:
        return max(self.interval_s, min(self.max_interval_s, age_s / 200.0))


@dataclass(slots=True)
class _Buffer:
    data: bytearray = field(default_factory=bytearray)
    completed: int = 0
    failed: int = 0
    tasks: int = 0
    usage: Usage = NO_USAGE
    seconds: DurationSketch = field(default_factory=DurationSketch)
    since: float | None = None

    @property
    def lines(self) -> int:
        return self.completed + self.failed


class RunLog:
    def __init__(
        self,
        record: RunRecord,
        batch: BatchRecord,
        writer: GuardedWriter,
        storage: RunStorage,
        policy: FlushPolicy,
    ) -> None:
        self.record = record
        self.batch = batch
        self._writer = writer
        self._storage = storage
        self._policy = policy
        self._buffer = _Buffer()
        self._spans = TaskSpans()
        prefix = keys.segment_object(record.id, writer.epoch, 0)[:-8]
        self._number = sum(1 for ref in record.segments if ref.object.startswith(prefix))

    @classmethod
    async def open(
        cls, run_id: str, writer: GuardedWriter, storage: RunStorage, policy: FlushPolicy
    ) -> RunLog | None:
        """None when the run has ended or was never begun."""
        record = await writer.read(keys.run(run_id), RunRecord)
        if record is None or record.ended_at is not None:
            return None
        batch = await writer.read(keys.batch(record.account, record.batch_id), BatchRecord)
        if batch is None or batch.status in TERMINAL:
            return None
        return cls(record, batch, writer, storage, policy)

    # What is there

    async def recorded(self) -> AsyncIterator[SegmentLine]:
        """Every outcome in a named segment, each line once. RunBroken on a damaged segment; of a
        run that failed, such a segment is left out."""
        seen = LineSet()
        for ref in self.record.segments:
            try:
                lines = await self._segment(ref)
            except RunBroken as broken:
                if self.record.outcome != FAILED:
                    raise
                fields = {"run": self.record.id, "why": broken.why, "detail": broken.detail}
                log.warning("a segment is left out", extra=fields)
                continue
            for line in lines:
                if seen.add(line.line):
                    yield line

    async def _segment(self, ref: SegmentRef) -> list[SegmentLine]:
        """Of a damaged one, nothing is trusted: RunBroken."""
        data = await self._storage.get_whole(ref.object, ref.bytes, ref.digest, _RESULTS)
        damaged = RunBroken(f"{_RESULTS} is damaged.", f"See '{ref.object}'.")
        try:
            lines = list(decode_segment(data))
        except msgspec.MsgspecError as error:
            raise damaged from error
        if len(lines) != ref.lines:
            raise damaged
        return lines

    async def resume(self) -> tuple[LineSet, int, int]:
        """The lines that have an outcome, how many are outputs, how many errors."""
        done = LineSet()
        completed = failed = 0
        async for line in self.recorded():
            done.add(line.line)
            completed += line.kind == "output"
            failed += line.kind != "output"
            if line.kind == "output":
                self._spans.extend(line.trace, line.began_s, line.ended_s)
        return done, completed, failed

    # Outcomes

    def add(
        self,
        line: int,
        kind: str,
        record: bytes,
        now: float,
        *,
        usage: Usage = NO_USAGE,
        trace: str = "",
        began_s: float = 0.0,
        ended_s: float = 0.0,
    ) -> None:
        """An outcome; written with the next flush. `kind`: "output" or "error"; when its step
        began and ended in Unix seconds."""
        buffer = self._buffer
        buffer.usage += usage
        times = (began_s, ended_s) if trace else (0.0, 0.0)
        buffer.data += encode_line(line, kind, record, trace, *times)
        buffer.completed += kind == "output"
        buffer.failed += kind != "output"
        if kind == "output":  # what failed was no task done
            before_s, now_s = self._spans.extend(trace, began_s, ended_s)
            buffer.tasks += before_s is None
            if before_s is not None:
                buffer.seconds.remove(before_s)
            buffer.seconds.add(now_s)
        if buffer.since is None:
            buffer.since = now

    def flush_at(self, age_s: float) -> float | None:
        """When the buffer wants to be flushed; None while it is empty."""
        buffer = self._buffer
        if buffer.since is None:
            return None
        full = buffer.lines >= self._policy.max_lines or len(buffer.data) >= self._policy.max_bytes
        return buffer.since if full else buffer.since + self._policy.interval(age_s)

    async def flush(self, use: RunUse, losses: Mapping[int, int]) -> None:
        """Writes the buffer as one segment, then names it, and how many losses lines without an
        outcome were in. Not to be called while it runs."""
        buffer, self._buffer = self._buffer, _Buffer()
        if not buffer.lines and losses == self.record.losses:
            return
        segment = [await self._put(buffer)] if buffer.lines else []
        record = msgspec.structs.replace(
            self.record,
            segments=[*self.record.segments, *segment],
            losses=dict(losses),
            completed=self.record.completed + buffer.completed,
            failed=self.record.failed + buffer.failed,
            ledger=_with(self.ledger(use), buffer),
        )
        await self._writer.commit([put_record(keys.run(record.id), record)])
        self.record = record

    async def _put(self, buffer: _Buffer) -> SegmentRef:
        data = bytes(buffer.data)
        while True:
            self._number += 1
            key = keys.segment_object(self.record.id, self._writer.epoch, self._number)
            # A number may be taken by what an executor of this leader wrote and never named.
            if await self._storage.create(key, data, _RESULTS):
                break
        digest = digest_of(data)
        return SegmentRef(object=key, lines=buffer.lines, bytes=len(data), digest=digest)

    def ledger(self, use: RunUse) -> LedgerRecord:
        """The sums over the recorded lines with those over the step reports."""
        return msgspec.structs.replace(
            self.record.ledger,
            computed_tokens=use.computed_tokens,
            busy_engine_s=use.busy_engine_s,
            idle_engine_s=use.idle_engine_s,
            self_placed_steps=use.self_placed_steps,
        )

    # Status

    async def begin_finalizing(
        self, outcome: str, output_file_id: str, error_file_id: str, now: int
    ) -> None:
        """Fixes where the run ends and the ids of its files; a repeat changes nothing."""
        if self.record.outcome:
            return
        record = msgspec.structs.replace(
            self.record,
            losses={},
            outcome=outcome,
            output_file_id=output_file_id,
            error_file_id=error_file_id,
        )
        batch = msgspec.structs.replace(self.batch, status="finalizing", finalizing_at=now)
        await self._commit(record, batch, [])

    async def begin_failing(
        self, why: str, output_file_id: str, error_file_id: str, now: int
    ) -> None:
        """From here the run ends as failed, whatever it was to end as; a repeat changes nothing."""
        if self.record.outcome == FAILED:
            return
        record = msgspec.structs.replace(
            self.record,
            losses={},
            outcome=FAILED,
            error=why,
            output_file_id=self.record.output_file_id or output_file_id,
            error_file_id=self.record.error_file_id or error_file_id,
        )
        began = self.batch.finalizing_at or now
        batch = msgspec.structs.replace(self.batch, status="finalizing", finalizing_at=began)
        await self._commit(record, batch, [])

    async def end(self, batch: BatchRecord, record: RunRecord, puts: list[Op]) -> None:
        """The terminal status, with what exists from now on and what is needed no more."""
        assert batch.status in TERMINAL
        assert record.completed + record.failed == record.total
        closing: list[Op] = [
            *puts,
            Delete(keys.file_ref(batch.input_file_id, batch.id)),
            Delete(keys.cancel(batch.id)),
        ]
        await self._commit(record, batch, closing)

    async def fail(self, why: str, use: RunUse, now: int) -> None:
        """The end of a run that has no files: no line counts as completed."""
        record = msgspec.structs.replace(
            self.record,
            completed=0,
            failed=self.record.total,
            unanswered=self.record.total - self.record.failed,
            output_file_id="",
            error_file_id="",
            outcome=FAILED,
            ledger=self.ledger(use),
            error=why,
            ended_at=now,
        )
        await self.end(failed_batch(self.batch, why, now), record, [])

    async def _commit(self, record: RunRecord, batch: BatchRecord, more: list[Op]) -> None:
        ops = [
            put_record(keys.run(record.id), record),
            put_record(keys.batch(batch.account, batch.id), batch),
            *more,
        ]
        await self._writer.commit(ops)
        self.record, self.batch = record, batch


def failed_batch(batch: BatchRecord, why: str, now: int) -> BatchRecord:
    """`batch` once it has failed with that error."""
    error = BatchError(code=RUN_FAILED, message=why)
    return msgspec.structs.replace(
        batch, status=FAILED, failed_at=now, errors=[*batch.errors, error]
    )


def _with(ledger: LedgerRecord, buffer: _Buffer) -> LedgerRecord:
    """The ledger once the buffer's lines are recorded too."""
    seconds = DurationSketch.from_list(ledger.task_seconds)
    seconds.merge(buffer.seconds)
    return msgspec.structs.replace(
        ledger,
        tasks=ledger.tasks + buffer.tasks,
        prompt_tokens=ledger.prompt_tokens + buffer.usage.prompt_tokens,
        cached_tokens=ledger.cached_tokens + buffer.usage.cached_tokens,
        completion_tokens=ledger.completion_tokens + buffer.usage.completion_tokens,
        reasoning_tokens=ledger.reasoning_tokens + buffer.usage.reasoning_tokens,
        task_seconds=seconds.to_list(),
    )
