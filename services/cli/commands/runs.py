"""impala runs: executions of batches, and what they cost."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from services.cli import options
from services.cli.client import Run
from services.cli.ledger import run_rows
from services.cli.output import clock, dollars, pairs, print_json, table

app = typer.Typer(help="Runs: executions of batches, with their cost.", no_args_is_help=True)


@app.command("list")
def list_runs(
    job: Annotated[str, typer.Option(help="Only this job's.")] = "",
    limit: options.Limit = 20,
    as_json: options.AsJson = False,
    url: options.Url = "",
    api_key: options.ApiKey = "",
    state: options.State = None,
) -> int:
    """List runs, newest first."""

    async def work() -> list[Run]:
        async with options.client_of(url, api_key, state) as client:
            return await client.runs(limit, job)

    runs = asyncio.run(work())
    if as_json:
        print_json(runs)
        return 0
    columns = ("run", "job", "status", "done>", "total>", "cost>", "tasks/$>", "created")
    table(columns, map(_row, runs))
    return 0


@app.command()
def show(
    run_id: Annotated[str, typer.Argument(metavar="RUN")],
    as_json: options.AsJson = False,
    url: options.Url = "",
    api_key: options.ApiKey = "",
    state: options.State = None,
) -> int:
    """Show a run's ledger."""

    async def work() -> Run:
        async with options.client_of(url, api_key, state) as client:
            return await client.run(run_id)

    run = asyncio.run(work())
    if as_json:
        print_json(run)
        return 0
    counts = run["request_counts"]
    rows = run_rows(run)
    rows[1:1] = [
        ("batch", run.get("batch_id")),
        ("job", run.get("job_id")),
        ("status", run["status"]),
        ("lines", f"{counts['completed']} of {counts['total']}, {counts['failed']} failed"),
    ]
    if run.get("error"):
        rows.append(("error", run.get("error")))
    pairs("", rows)
    return 0


def _row(run: Run) -> tuple[object, ...]:
    counts, ledger = run["request_counts"], run["ledger"]
    return (
        run["id"],
        run.get("job_id"),
        run["status"],
        counts["completed"] + counts["failed"],
        counts["total"],
        dollars(ledger.get("processing_cost", 0.0)),
        f"{ledger.get('tasks_per_dollar', 0.0):,.0f}",
        clock(run.get("created_at")),
    )
