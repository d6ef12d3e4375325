"""The money side of a batch or a run, as rows of a table."""

from __future__ import annotations

from services.cli.client import Batch, Run, failed_lines
from services.cli.core.progress import unanswered_word
from services.cli.output import dollars, seconds

Rows = list[tuple[str, object]]

COUNT_COLUMNS = ("completed>", "failed>", "unanswered>", "total>")


def batch_rows(batch: Batch, run: Run | None) -> Rows:
    """run: None where the batch has none (it failed in validation)."""
    rows: Rows = [
        ("batch", batch["id"]),
        ("status", batch["status"]),
        ("lines", line_counts(batch)),
        ("model", batch.get("model")),
        ("job", batch.get("job_id")),
    ]
    return rows + (run_rows(run) if run else [])


def run_rows(run: Run) -> Rows:
    ledger = run["ledger"]
    prompt, cached = ledger.get("prompt_tokens", 0), ledger.get("cached_tokens", 0)
    price = ledger.get("price_1m_tokens")
    share = f" ({cached / prompt:.0%} from the prefix cache)" if prompt else ""
    rows: Rows = [
        ("run", run["id"]),
        ("tasks", ledger.get("tasks", 0)),
        ("prompt tokens", f"{prompt:,}{share}"),
        ("completion tokens", f"{ledger.get('completion_tokens', 0):,}"),
        ("wasted tokens", f"{ledger.get('wasted_tokens', 0):,} (computed, in no recorded line)"),
        (
            "engine time",
            f"{ledger.get('busy_engine_s', 0.0):.1f} s busy, "
            f"{ledger.get('idle_engine_s', 0.0):.1f} s idle",
        ),
        (
            "cost",
            f"{dollars(ledger.get('processing_cost', 0.0))} "
            f"(at ${ledger.get('price_per_engine_hour', 0.0):g} per engine-hour)",
        ),
        ("price of 1M tokens", None if price is None else dollars(price)),
        ("tasks per dollar", tasks_per_dollar(run)),
    ]
    times = ledger.get("task_completion_s")
    if times:
        each = ", ".join(f"{name} {seconds(times[name])}" for name in ("p50", "p90", "p99"))
        rows.append(("task completion", each))
    return rows


def tasks_per_dollar(run: Run) -> str | None:
    """None before the first task and the first cost."""
    each = run["ledger"].get("tasks_per_dollar")
    return None if each is None else f"{each:,.0f}"


def count_cells(counted: Batch | Run) -> tuple[object, ...]:
    """A batch's or a run's lines, for COUNT_COLUMNS."""
    counts, unanswered = counted["request_counts"], counted.get("unanswered", 0)
    return counts["completed"], failed_lines(counted), unanswered, counts["total"]


def line_counts(counted: Batch | Run) -> str:
    """The same in words; kinds of which there is no line are left out."""
    counts = counted["request_counts"]
    if not counts["total"]:
        return "not known: no run has begun"
    unanswered = (counted.get("unanswered", 0), unanswered_word(counted["status"]))
    kinds = ((failed_lines(counted), "failed"), unanswered)
    rest = "".join(f", {count} {kind}" for count, kind in kinds if count)
    return f"{counts['completed']} of {counts['total']} completed{rest}"
