"""Records as the public protos."""

from __future__ import annotations

from impala.common.v1 import common_pb2
from impala.router.v1 import router_pb2
from impala.scheduler.v1 import scheduler_pb2
from libs.records.batch import FileRecord, Job, LedgerRecord, RunRecord
from libs.records.ledger_message import ledger_message
from services.router.batches import BatchState
from services.router.runs import RunState
from services.router.views import batch_status


def ms(seconds: int | None) -> int:
    return 0 if seconds is None else seconds * 1000


def job_message(job: Job) -> router_pb2.Job:
    return router_pb2.Job(
        id=job.id,
        model=job.model,
        name=job.name,
        account=job.account,
        fleet=job.fleet,
        precision=job.precision,
        price_per_engine_hour=job.price_per_engine_hour,
        created_unix_ms=ms(job.created_at),
        metadata=job.metadata,
    )


def file_message(record: FileRecord) -> router_pb2.File:
    return router_pb2.File(
        id=record.id,
        bytes=record.bytes,
        filename=record.filename,
        purpose=record.purpose,
        created_unix_ms=ms(record.created_at),
        expires_unix_ms=ms(record.expires_at),
        status="processed",
    )


def batch_message(state: BatchState) -> router_pb2.Batch:
    record, run, cancel_at = state
    cancelling = record.cancelling_at if cancel_at is None else cancel_at
    return router_pb2.Batch(
        id=record.id,
        account=record.account,
        job_id=record.job_id,
        run_id=record.run_id if run else "",
        model=record.model,
        endpoint=record.endpoint,
        input_file_id=record.input_file_id,
        completion_window=record.completion_window,
        status=batch_status(record, cancel_at),
        errors=[
            router_pb2.BatchError(
                code=error.code,
                message=error.message,
                param=error.param or "",
                line=error.line or 0,
            )
            for error in record.errors
        ],
        output_file_id=record.output_file_id or "",
        error_file_id=record.error_file_id or "",
        total=run.total if run else 0,
        completed=run.completed if run else 0,
        failed=run.failed if run else 0,
        created_unix_ms=ms(record.created_at),
        in_progress_unix_ms=ms(record.in_progress_at),
        finalizing_unix_ms=ms(record.finalizing_at),
        completed_unix_ms=ms(record.completed_at),
        failed_unix_ms=ms(record.failed_at),
        expired_unix_ms=ms(record.expired_at),
        cancelling_unix_ms=ms(cancelling),
        cancelled_unix_ms=ms(record.cancelled_at),
        expires_unix_ms=ms(record.expires_at),
        metadata=record.metadata or {},
        ledger=ledger_message(run.ledger if run else LedgerRecord()),
    )


def run_message(state: RunState) -> router_pb2.Run:
    run = state.run
    return router_pb2.Run(
        id=run.id,
        batch_id=run.batch_id,
        job_id=run.job_id,
        account=run.account,
        progress=progress_message(run, state.status),
        created_unix_ms=ms(run.created_at),
        ended_unix_ms=ms(run.ended_at),
        error=run.error,
    )


def progress_message(run: RunRecord, status: str) -> scheduler_pb2.RunProgress:
    return scheduler_pb2.RunProgress(
        run_id=run.id,
        batch_id=run.batch_id,
        status=status,
        total=run.total,
        completed=run.completed,
        failed=run.failed,
        ledger=ledger_message(run.ledger),
    )


def page_info(ids: list[str], has_more: bool) -> common_pb2.PageInfo:
    return common_pb2.PageInfo(has_more=has_more and bool(ids), last_id=ids[-1] if ids else "")
