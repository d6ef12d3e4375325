"""A run's ledger as the contracts show it, for every service that does."""

from __future__ import annotations

from impala.common.v1 import common_pb2
from impala.scheduler.v1 import scheduler_pb2
from libs.records.batch import LedgerRecord
from libs.units.durations import DurationSketch

_UINT32 = 0xFFFFFFFF


def ledger_message(ledger: LedgerRecord) -> scheduler_pb2.Ledger:
    times = DurationSketch.from_list(ledger.task_seconds).quantiles()
    return scheduler_pb2.Ledger(
        tasks=ledger.tasks,
        usage=common_pb2.Usage(
            prompt_tokens=min(_UINT32, ledger.prompt_tokens),
            cached_tokens=min(_UINT32, ledger.cached_tokens),
            completion_tokens=min(_UINT32, ledger.completion_tokens),
            reasoning_tokens=min(_UINT32, ledger.reasoning_tokens),
        ),
        prompt_tokens=ledger.prompt_tokens,
        cached_tokens=ledger.cached_tokens,
        completion_tokens=ledger.completion_tokens,
        busy_engine_s=ledger.busy_engine_s,
        idle_engine_s=ledger.idle_engine_s,
        wall_engine_s=ledger.wall_engine_s,
        price_per_engine_hour=ledger.price_per_engine_hour,
        processing_cost=ledger.processing_cost,
        price_1m_tokens=ledger.price_1m_tokens,
        tasks_per_dollar=ledger.tasks_per_dollar,
        task_completion_s=scheduler_pb2.Percentiles(
            p50=times.p50, p90=times.p90, p99=times.p99, count=times.count
        ),
        self_placed_steps=ledger.self_placed_steps,
        wasted_tokens=ledger.wasted_tokens,
    )
