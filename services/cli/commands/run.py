"""impala run."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated, Any

import typer

from services.cli import options
from services.cli.at_router import AtRouter
from services.cli.commands.up import check_precision
from services.cli.ledger import batch_rows
from services.cli.one_shot import Answered, OneShot, answer
from services.cli.options import grouped
from services.cli.output import pairs, print_json, say


def register(app: typer.Typer) -> None:
    app.command()(grouped(router=AtRouter)(run))


def run(
    input: Annotated[Path, typer.Argument(metavar="IN.jsonl", help="Requests, as a batch file.")],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="OUT.jsonl")],
    router: AtRouter,
    model: Annotated[str, typer.Option(help="The model to serve; else what the lines name.")] = "",
    precision: Annotated[
        str | None,
        typer.Option(
            help="Of the weights: auto, float32, float16 or int8.", callback=check_precision
        ),
    ] = None,
    window: options.Window = "24h",
    job: Annotated[
        str, typer.Option(help="Job of a running instance; else the model's newest.")
    ] = "",
    substitute_model: Annotated[
        bool,
        typer.Option(
            "--substitute-model", help="Answer with --model whatever lines name, or name not."
        ),
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Overwrite OUT.jsonl.")] = False,
    as_json: options.AsJson = False,
) -> int:
    """Answer a file of requests: start what it needs, run the batch, stop again.

    A running instance that serves the model is used instead. Exit code: 0 every line was answered,
    3 some failed (they are in OUT.errors.jsonl), 1 the batch failed, 130 interrupted.
    """
    wish = OneShot(
        input=input,
        output=output,
        model=model,
        precision=precision,
        window=window,
        state=router.state,
        url=router.url,
        ca=router.ca,
        tls=router.tls,
        api_key=router.api_key,
        job=job,
        substitute=substitute_model,
        force=force,
    )
    answered = asyncio.run(answer(wish))
    show_errors(answered)
    if as_json:
        print_json(as_document(answered))
    else:
        show(answered)
    if answered.interrupted and answered.batch["status"] == "cancelled":
        say(
            "\nInterrupted: what was answered is kept; the lines that were not are among the "
            "failed ones. The same command with --force answers all of them anew."
        )
    return answered.exit_code


def show(answered: Answered) -> None:
    rows = batch_rows(answered.batch, answered.run)
    if answered.files.output:
        rows.append(("answers", answered.files.output))
    if answered.files.errors:
        rows.append(("failed lines", answered.files.errors))
    pairs("", rows)


def show_errors(answered: Answered) -> None:
    """Why the batch failed, by line."""
    errors = answered.batch.get("errors")
    for error in errors["data"] if errors else []:
        where = f"line {error['line']}: " if error.get("line") else ""
        say(f"impala: {where}{error.get('message')} ({error.get('code')})")


def as_document(answered: Answered) -> dict[str, Any]:
    files = answered.files
    return {
        "batch": answered.batch,
        "run": answered.run,
        "output": str(files.output) if files.output else None,
        "errors": str(files.errors) if files.errors else None,
    }
