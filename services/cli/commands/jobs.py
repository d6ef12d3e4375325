"""impala jobs: a model and its configuration, what batches run on."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Annotated

import typer

from services.cli import options
from services.cli.client import Job
from services.cli.output import clock, pairs, print_json, say, table

app = typer.Typer(help="Jobs: a model and its configuration.", no_args_is_help=True)


@app.command()
def create(
    model: Annotated[str, typer.Option(help="Served model's name.")],
    name: Annotated[str, typer.Option(help="For people.")] = "",
    price: Annotated[
        float | None,
        typer.Option("--price-per-engine-hour", help="USD; else the router's default.", min=0),
    ] = None,
    as_json: options.AsJson = False,
    url: options.Url = "",
    api_key: options.ApiKey = "",
    state: options.State = None,
) -> int:
    """Make a job and print its id."""

    async def work() -> Job:
        async with options.client_of(url, api_key, state) as client:
            return await client.create_job(model, name=name, price_per_engine_hour=price)

    job = asyncio.run(work())
    if as_json:
        print_json(job)
    else:
        print(job["id"])
    return 0


@app.command("list")
def list_jobs(
    as_json: options.AsJson = False,
    url: options.Url = "",
    api_key: options.ApiKey = "",
    state: options.State = None,
) -> int:
    """List jobs, newest first."""

    async def work() -> list[Job]:
        async with options.client_of(url, api_key, state) as client:
            return await client.jobs()

    jobs = asyncio.run(work())
    if as_json:
        print_json(jobs)
    else:
        table(("job", "model", "name", "price/h>", "created"), map(_row, jobs))
    return 0


@app.command()
def show(
    job_id: Annotated[str, typer.Argument(metavar="JOB")],
    as_json: options.AsJson = False,
    url: options.Url = "",
    api_key: options.ApiKey = "",
    state: options.State = None,
) -> int:
    """Show one job."""

    async def work() -> Job:
        async with options.client_of(url, api_key, state) as client:
            return await client.job(job_id)

    job = asyncio.run(work())
    if as_json:
        print_json(job)
    else:
        names: Iterable[str] = ("job", "model", "name", "USD per engine-hour", "created")
        pairs("", zip(names, _row(job), strict=True))
    return 0


@app.command()
def delete(
    job_id: Annotated[str, typer.Argument(metavar="JOB")],
    url: options.Url = "",
    api_key: options.ApiKey = "",
    state: options.State = None,
) -> int:
    """Delete a job that no unfinished batch needs."""

    async def work() -> None:
        async with options.client_of(url, api_key, state) as client:
            await client.delete_job(job_id)

    asyncio.run(work())
    say(f"{job_id} is deleted")
    return 0


def _row(job: Job) -> tuple[object, ...]:
    return (
        job["id"],
        job["model"],
        job.get("name"),
        job.get("price_per_engine_hour"),
        clock(job.get("created_at")),
    )
