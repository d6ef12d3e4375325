"""impala files: inputs and outputs of batches."""

from __future__ import annotations

import asyncio
import sys
from contextlib import aclosing
from pathlib import Path
from typing import Annotated

import typer

from services.cli import options
from services.cli.batch_run import download as save
from services.cli.client import File
from services.cli.errors import Usage
from services.cli.output import clock, print_json, say, table

app = typer.Typer(help="Files: inputs and outputs of batches.", no_args_is_help=True)

FileId = Annotated[str, typer.Argument(metavar="FILE-ID")]


@app.command("list")
def list_files(
    limit: options.Limit = 100,
    as_json: options.AsJson = False,
    url: options.Url = "",
    api_key: options.ApiKey = "",
    state: options.State = None,
) -> int:
    """List files, newest first."""

    async def work() -> list[File]:
        async with options.client_of(url, api_key, state) as client:
            return await client.files(limit)

    files = asyncio.run(work())
    if as_json:
        print_json(files)
        return 0
    table(
        ("file", "bytes>", "purpose", "name", "created"),
        [
            (
                each["id"],
                each.get("bytes"),
                each.get("purpose"),
                each.get("filename"),
                clock(each.get("created_at")),
            )
            for each in files
        ],
    )
    return 0


@app.command()
def upload(
    path: Annotated[Path, typer.Argument(metavar="PATH")],
    as_json: options.AsJson = False,
    url: options.Url = "",
    api_key: options.ApiKey = "",
    state: options.State = None,
) -> int:
    """Upload a batch's input and print its id."""
    if not path.is_file():
        raise Usage(f"There is no file {path}.")

    async def work() -> File:
        async with options.client_of(url, api_key, state) as client:
            return await client.upload(path)

    file = asyncio.run(work())
    if as_json:
        print_json(file)
    else:
        print(file["id"])
    return 0


@app.command()
def download(
    file_id: FileId,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="File to write; else stdout.")
    ] = None,
    url: options.Url = "",
    api_key: options.ApiKey = "",
    state: options.State = None,
) -> int:
    """Get a file's content."""

    async def work() -> None:
        async with options.client_of(url, api_key, state) as client:
            if output is not None:
                await save(client, file_id, output)
                return
            async with aclosing(client.content(file_id)) as chunks:
                async for chunk in chunks:
                    sys.stdout.buffer.write(chunk)

    asyncio.run(work())
    return 0


@app.command()
def delete(
    file_id: FileId,
    url: options.Url = "",
    api_key: options.ApiKey = "",
    state: options.State = None,
) -> int:
    """Delete a file that no unfinished batch needs."""

    async def work() -> None:
        async with options.client_of(url, api_key, state) as client:
            await client.delete_file(file_id)

    asyncio.run(work())
    say(f"{file_id} is deleted")
    return 0
