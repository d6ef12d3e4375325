"""impala files: inputs and outputs of batches."""

from __future__ import annotations

import sys
from contextlib import aclosing
from pathlib import Path
from typing import Annotated

import typer

from services.cli import options
from services.cli.at_router import AtRouter, with_client
from services.cli.batch_run import download as save
from services.cli.client import Client, File
from services.cli.errors import Usage
from services.cli.options import grouped
from services.cli.output import clock, listing, print_json, say

app = typer.Typer(help="Files: inputs and outputs of batches.", no_args_is_help=True)

FileId = Annotated[str, typer.Argument(metavar="FILE-ID")]


@app.command("list")
@grouped(router=AtRouter)
def list_files(
    router: AtRouter,
    limit: options.Limit = 100,
    as_json: options.AsJson = False,
) -> int:
    """List files, newest first."""
    files = with_client(router, lambda client: client.files(limit))
    columns = ("file", "bytes>", "purpose", "name", "created")
    listing(files, columns, _row, as_json=as_json)
    return 0


@app.command()
@grouped(router=AtRouter)
def upload(
    path: Annotated[Path, typer.Argument(metavar="PATH")],
    router: AtRouter,
    as_json: options.AsJson = False,
) -> int:
    """Upload a batch's input and print its id."""
    if not path.is_file():
        raise Usage(f"There is no file {path}.")
    file = with_client(router, lambda client: client.upload(path))
    if as_json:
        print_json(file)
    else:
        print(file["id"])
    return 0


@app.command()
@grouped(router=AtRouter)
def download(
    file_id: FileId,
    router: AtRouter,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="File to write; else stdout.")
    ] = None,
) -> int:
    """Get a file's content."""

    async def work(client: Client) -> None:
        if output is not None:
            await save(client, file_id, output)
            return
        async with aclosing(client.content(file_id)) as chunks:
            async for chunk in chunks:
                sys.stdout.buffer.write(chunk)

    with_client(router, work)
    return 0


@app.command()
@grouped(router=AtRouter)
def delete(
    file_id: FileId,
    router: AtRouter,
) -> int:
    """Delete a file that no unfinished batch needs."""
    with_client(router, lambda client: client.delete_file(file_id))
    say(f"{file_id} is deleted")
    return 0


def _row(file: File) -> tuple[object, ...]:
    return (
        file["id"],
        file.get("bytes"),
        file.get("purpose"),
        file.get("filename"),
        clock(file.get("created_at")),
    )
