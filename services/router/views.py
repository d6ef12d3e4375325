"""Records as the HTTP surface shows them: OpenAI's objects with Impala's additions.

`unanswered` is beside `request_counts` because that adds up to its total: it is how many of the
failed lines nobody answered before the batch was cancelled or expired.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from libs.records.batch import (
    TERMINAL,
    BatchError,
    BatchRecord,
    FileRecord,
    Job,
    LedgerRecord,
    RunRecord,
)
from libs.units.durations import DurationSketch


def file_view(record: FileRecord) -> dict[str, Any]:
    """`status` is "processed" at once: the official client polls until it is."""
    return {
        "id": record.id,
        "object": "file",
        "bytes": record.bytes,
        "created_at": record.created_at,
        "filename": record.filename,
        "purpose": record.purpose,
        "status": "processed",
        "expires_at": record.expires_at,
        "status_details": None,
    }


def job_view(job: Job, served_precision: str | None) -> dict[str, Any]:
    """served_precision: of the weights that answer now for a job that asks for none."""
    return {
        "id": job.id,
        "object": "job",
        "model": job.model,
        "name": job.name,
        "fleet": job.fleet or None,
        "precision": job.precision or served_precision,
        "price_per_engine_hour": job.price_per_engine_hour,
        "created_at": job.created_at,
        "metadata": job.metadata or None,
    }


def batch_status(record: BatchRecord, cancel_at: int | None) -> str:
    """A cancel intent shows as `cancelling` until the leader has ended the batch."""
    if record.status not in TERMINAL and cancel_at is not None:
        return "cancelling"
    return record.status


def batch_view(record: BatchRecord, run: RunRecord | None, cancel_at: int | None) -> dict[str, Any]:
    """The batch object: every field of OpenAI's, then Impala's.

    record, run: as etcd holds them; run is None until the batch is in progress.
    cancel_at: Unix seconds of the cancel intent, None without one.
    """
    return {
        "id": record.id,
        "object": "batch",
        "endpoint": record.endpoint,
        "model": record.model or None,
        "errors": _errors(record.errors),
        "input_file_id": record.input_file_id,
        "completion_window": record.completion_window,
        "status": batch_status(record, cancel_at),
        "output_file_id": record.output_file_id,
        "error_file_id": record.error_file_id,
        "created_at": record.created_at,
        "in_progress_at": record.in_progress_at,
        "expires_at": record.expires_at,
        "finalizing_at": record.finalizing_at,
        "completed_at": record.completed_at,
        "failed_at": record.failed_at,
        "expired_at": record.expired_at,
        "cancelling_at": record.cancelling_at if cancel_at is None else cancel_at,
        "cancelled_at": record.cancelled_at,
        "request_counts": {
            "total": run.total if run else 0,
            "completed": run.completed if run else 0,
            "failed": run.failed if run else 0,
        },
        "unanswered": run.unanswered if run else 0,
        "rerun": len(run.losses) if run else 0,
        "usage": _usage(run.ledger if run else LedgerRecord()),
        "metadata": record.metadata,
        "job_id": record.job_id or None,
        "run_id": record.run_id if run else None,
        **_money(run.ledger if run else LedgerRecord()),
    }


def run_view(run: RunRecord, status: str) -> dict[str, Any]:
    """One execution of a batch against a job, with its ledger."""
    ledger = run.ledger
    return {
        "id": run.id,
        "object": "run",
        "batch_id": run.batch_id,
        "job_id": run.job_id,
        "model": run.model,
        "endpoint": run.endpoint,
        "status": status,
        "created_at": run.created_at,
        "started_at": int(run.started_at),
        "ended_at": run.ended_at,
        "error": run.error or None,
        # Both ids are fixed before it is known whether there is anything to write.
        "output_file_id": run.output_file_id if run.output_file_id and run.completed else None,
        "error_file_id": run.error_file_id if run.error_file_id and run.failed else None,
        "request_counts": {
            "total": run.total,
            "completed": run.completed,
            "failed": run.failed,
        },
        "unanswered": run.unanswered,
        "rerun": len(run.losses),
        "usage": _usage(ledger),
        "ledger": {
            "tasks": ledger.tasks,
            "prompt_tokens": ledger.prompt_tokens,
            "cached_tokens": ledger.cached_tokens,
            "completion_tokens": ledger.completion_tokens,
            "reasoning_tokens": ledger.reasoning_tokens,
            "busy_engine_s": ledger.busy_engine_s,
            "idle_engine_s": ledger.idle_engine_s,
            "wall_engine_s": ledger.wall_engine_s,
            "price_per_engine_hour": ledger.price_per_engine_hour,
            "self_placed_steps": ledger.self_placed_steps,
            "wasted_tokens": ledger.wasted_tokens,
            **_money(ledger),
        },
    }


def _errors(errors: Sequence[BatchError]) -> dict[str, Any] | None:
    if not errors:
        return None
    return {
        "object": "list",
        "data": [
            {
                "code": error.code,
                "line": error.line,
                "message": error.message,
                "param": error.param,
            }
            for error in errors
        ],
    }


def _usage(ledger: LedgerRecord) -> dict[str, Any]:
    """Responses naming, also for chat batches: that is what the batch object has."""
    return {
        "input_tokens": ledger.prompt_tokens,
        "input_tokens_details": {"cached_tokens": ledger.cached_tokens},
        "output_tokens": ledger.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": ledger.reasoning_tokens},
        "total_tokens": ledger.prompt_tokens + ledger.completion_tokens,
    }


def _money(ledger: LedgerRecord) -> dict[str, Any]:
    """USD, and how long a task took from hand-out to outcome; a quotient is null while there is
    no token, no task or no cost to make it of."""
    cost = ledger.processing_cost
    return {
        "processing_cost": cost,
        "price_1m_tokens": (
            ledger.price_1m_tokens if ledger.prompt_tokens + ledger.completion_tokens else None
        ),
        "tasks_per_dollar": ledger.tasks_per_dollar if ledger.tasks and cost > 0 else None,
        "task_completion_s": _percentiles(ledger.task_seconds),
    }


def _percentiles(sketch: Sequence[float]) -> dict[str, float] | None:
    """Seconds; within 5 %."""
    quantiles = DurationSketch.from_list(sketch).quantiles()
    if not quantiles.count:
        return None
    return {
        "p50": quantiles.p50,
        "p90": quantiles.p90,
        "p99": quantiles.p99,
        "count": quantiles.count,
    }
