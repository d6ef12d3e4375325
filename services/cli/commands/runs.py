"""impala runs: executions of batches, and what they cost."""

from __future__ import annotations

from typing import Annotated

import typer

from services.cli import options
from services.cli.at_router import AtRouter, with_client
from services.cli.client import Run
from services.cli.ledger import COUNT_COLUMNS, count_cells, line_counts, run_rows, tasks_per_dollar
from services.cli.options import grouped
from services.cli.output import clock, dollars, listing, pairs, print_json

COLUMNS = ("run", "job", "status", *COUNT_COLUMNS, "cost>", "tasks/$>", "created")

app = typer.Typer(help="Runs: executions of batches, with their cost.", no_args_is_help=True)


@app.command("list")
@grouped(router=AtRouter)
def list_runs(
    router: AtRouter,
    job: Annotated[str, typer.Option(help="Only this job's.")] = "",
    limit: options.Limit = 20,
    as_json: options.AsJson = False,
) -> int:
    """List runs, newest first."""
    runs = with_client(router, lambda client: client.runs(limit, job))
    listing(runs, COLUMNS, _row, as_json=as_json)
    return 0


@app.command()
@grouped(router=AtRouter)
def show(
    run_id: Annotated[str, typer.Argument(metavar="RUN")],
    router: AtRouter,
    as_json: options.AsJson = False,
) -> int:
    """Show a run's ledger."""
    run = with_client(router, lambda client: client.run(run_id))
    if as_json:
        print_json(run)
        return 0
    rows = run_rows(run)
    rows[1:1] = [
        ("batch", run.get("batch_id")),
        ("job", run.get("job_id")),
        ("status", run["status"]),
        ("lines", line_counts(run)),
    ]
    if run.get("error"):
        rows.append(("error", run.get("error")))
    pairs("", rows)
    return 0


def _row(run: Run) -> tuple[object, ...]:
    ledger = run["ledger"]
    return (
        run["id"],
        run.get("job_id"),
        run["status"],
        *count_cells(run),
        dollars(ledger.get("processing_cost", 0.0)),
        tasks_per_dollar(run),
        clock(run.get("created_at")),
    )
