"""impala batch: submit, status, results, cancel, list."""

from __future__ import annotations

import sys
from contextlib import aclosing
from pathlib import Path
from typing import Annotated

import typer

from libs.rpc import connect
from services.cli import batch_run, job_choice, options
from services.cli.at_router import AtRouter, Found, with_client
from services.cli.client import Batch, Client, failed_lines
from services.cli.errors import FAILED, SOME_LINES_FAILED, CliError
from services.cli.invocation import typed
from services.cli.ledger import COUNT_COLUMNS, batch_rows, count_cells, line_counts
from services.cli.one_shot import endpoint_of, read_input
from services.cli.options import grouped
from services.cli.output import BatchProgress, clock, dollars, listing, pairs, print_json, say
from services.cli.results import follow_results, over_grpc, over_http

app = typer.Typer(
    help="Batches: files of requests, answered within a window.", no_args_is_help=True
)

COLUMNS = ("batch", "status", *COUNT_COLUMNS, "model", "cost>", "created")

BatchId = Annotated[str, typer.Argument(metavar="BATCH")]


@app.command()
@grouped(router=AtRouter)
def submit(
    file: Annotated[Path, typer.Argument(metavar="FILE.jsonl")],
    router: AtRouter,
    job: Annotated[
        str, typer.Option(help="Job to run it on; needed if the lines' model has several.")
    ] = "",
    endpoint: Annotated[str, typer.Option(help="Else what the first line names.")] = "",
    window: options.Window = "24h",
    wait: Annotated[bool, typer.Option("--wait", help="Show progress until it has ended.")] = False,
    as_json: options.AsJson = False,
) -> int:
    """Upload a file of requests and make a batch of it.

    Its lines are validated after that: without --wait, 'impala batch status' says how it went.
    """

    summary = read_input(file)
    target = endpoint or endpoint_of(summary)

    async def work(client: Client) -> Batch:
        # Before the upload: a large file must not travel for nothing.
        await job_choice.check(client, job, list(summary.models))
        batch = await batch_run.submit(client, file, endpoint=target, window=window, job_id=job)
        if wait and not as_json:
            say(f"batch {batch['id']}")
        return await _ended(client, batch["id"]) if wait else batch

    batch = with_client(router, work)
    if as_json:
        print_json(batch)
    elif wait:
        pairs("", batch_rows(batch, None))
        _say_failed_lines(batch)
    else:
        print(batch["id"])
        say(
            f"Its lines are validated next, then answered: '{typed()} batch status {batch['id']}' "
            "shows how far it is."
        )
    return exit_code(batch)


@app.command()
@grouped(router=AtRouter)
def status(
    batch_id: BatchId,
    router: AtRouter,
    as_json: options.AsJson = False,
) -> int:
    """Show a batch and what its run has cost so far.

    Exit code: 1 if it failed, as in validation (what is wrong is said on stderr), else 0.
    """

    async def work(client: Client) -> int:
        batch = await client.batch(batch_id)
        if as_json:
            print_json(batch)
        else:
            run_id = batch.get("run_id")
            pairs("", batch_rows(batch, await client.run(run_id) if run_id else None))
            _say_errors(batch)
            _say_failed_lines(batch)
        return FAILED if batch["status"] == "failed" else 0

    return with_client(router, work)


@app.command()
@grouped(router=AtRouter)
def results(
    batch_id: BatchId,
    router: AtRouter,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="File to write; else stdout.")
    ] = None,
    errors: Annotated[
        bool, typer.Option("--errors", help="The failed lines instead of the answers.")
    ] = False,
    follow: Annotated[
        bool, typer.Option("--follow", help="Answers as they come, until the batch has ended.")
    ] = False,
    grpc: Annotated[
        str,
        typer.Option(
            help="With --follow: the router's gRPC address, to ask there instead of over HTTP.",
            envvar="IMPALA_GRPC",
        ),
    ] = "",
) -> int:
    """Print a batch's answers, or its failed lines, as JSON lines.

    A batch that failed in validation has neither: what is wrong with it is said, and the exit code
    is 1. So it is after the lines of a batch whose run failed: what could be kept of it.
    """

    async def work(client: Client) -> int:
        batch = await client.batch(batch_id)
        if output is not None:
            batch_run.check_writable(output)
        if follow and output is None:
            await _follow(client, router.found(), grpc, batch_id, errors)
        elif follow:
            with BatchProgress() as bar:
                await batch_run.follow(client, batch_id, bar.show)
        batch = await batch_run.look(client, batch_id)
        if batch["status"] not in batch_run.TERMINAL:
            raise CliError(f"The batch is {batch['status']}: wait for its end, or give --follow.")
        failed = batch["status"] == "failed"
        if failed and not batch.get("run_id"):
            return _say_failed(batch)
        file_id = _file_id(batch, errors)
        if output is not None:
            await batch_run.download(client, file_id, output)
        elif not follow and file_id is not None:
            await _print_file(client, file_id)
        if file_id is None:
            _say_nothing(batch, errors)
        if batch["status"] in ("cancelled", "expired"):
            say(f"The batch {batch_id} is {batch['status']}: {line_counts(batch)}.")
        return _say_broken(batch) if failed else 0

    return with_client(router, work)


async def _follow(client: Client, router: Found, target: str, batch_id: str, errors: bool) -> None:
    if not target:
        await follow_results(over_http(client, batch_id), errors=errors)
        return
    async with connect(target, router.grpc_tls) as channel:
        await follow_results(over_grpc(channel, batch_id, router.api_key), errors=errors)


@app.command()
@grouped(router=AtRouter)
def cancel(
    batch_id: BatchId,
    router: AtRouter,
    as_json: options.AsJson = False,
) -> int:
    """Cancel a batch; its finished lines stay."""
    batch = with_client(router, lambda client: client.cancel_batch(batch_id))
    if as_json:
        print_json(batch)
    else:
        say(f"batch {batch['id']} is {batch['status']}")
    return 0


@app.command("list")
@grouped(router=AtRouter)
def list_batches(
    router: AtRouter,
    limit: options.Limit = 20,
    as_json: options.AsJson = False,
) -> int:
    """List batches, newest first."""
    batches = with_client(router, lambda client: client.batches(limit))
    listing(batches, COLUMNS, _row, as_json=as_json)
    return 0


def exit_code(batch: Batch) -> int:
    """As `impala run` has it; 0 while it goes on."""
    if batch["status"] in ("failed", "cancelled"):
        return FAILED
    return SOME_LINES_FAILED if batch.get("error_file_id") else 0


async def _ended(client: Client, batch_id: str) -> Batch:
    with BatchProgress() as bar:
        batch = await batch_run.follow(client, batch_id, bar.show)
    _say_errors(batch)
    return batch


def _say_errors(batch: Batch) -> None:
    errors = batch.get("errors")
    for error in errors["data"] if errors else []:
        where = f"line {error['line']}: " if error.get("line") else ""
        say(f"{where}{error.get('message')} ({error.get('code')})")


def _say_failed(batch: Batch) -> int:
    """Why there is nothing to print, and the exit code."""
    say(f"impala: The batch {batch['id']} failed in validation; none of its lines was answered.")
    _say_errors(batch)
    return FAILED


def _say_failed_lines(batch: Batch) -> None:
    """Where they are to be seen; they have a place once the batch has ended."""
    failed = failed_lines(batch)
    if not failed:
        return
    lines = "1 line" if failed == 1 else f"{failed} lines"
    when = "" if batch["status"] in batch_run.TERMINAL else " once it has ended"
    say(f"{lines} failed: '{typed()} batch results {batch['id']} --errors' shows why{when}.")


def _say_nothing(batch: Batch, errors: bool) -> None:
    """That there is no line of the kind that was asked for."""
    if errors:
        say(f"The batch {batch['id']} has no failed line.")
    elif batch.get("error_file_id"):
        say(
            f"The batch {batch['id']} has no answer: '{typed()} batch results {batch['id']} "
            "--errors' shows its failed lines."
        )
    else:
        say(f"The batch {batch['id']} has no answer.")


def _say_broken(batch: Batch) -> int:
    """That the lines are not those of a run that went well, and the exit code."""
    say(f"impala: The run of the batch {batch['id']} failed: {line_counts(batch)}.")
    _say_errors(batch)
    return FAILED


def _file_id(batch: Batch, errors: bool) -> str | None:
    return batch.get("error_file_id") if errors else batch.get("output_file_id")


async def _print_file(client: Client, file_id: str) -> None:
    async with aclosing(client.content(file_id)) as chunks:
        async for chunk in chunks:
            sys.stdout.buffer.write(chunk)
    sys.stdout.buffer.flush()


def _row(batch: Batch) -> tuple[object, ...]:
    return (
        batch["id"],
        batch["status"],
        *count_cells(batch),
        batch.get("model"),
        dollars(batch.get("processing_cost", 0.0)),
        clock(batch.get("created_at")),
    )
