"""impala jobs: a model and its configuration, what batches run on."""

from __future__ import annotations

from typing import Annotated

import typer

from services.cli import job_choice, options
from services.cli.at_router import AtRouter, with_client
from services.cli.client import Client, Job
from services.cli.options import grouped
from services.cli.output import clock, listing, pairs, print_json, say

app = typer.Typer(help="Jobs: a model and its configuration.", no_args_is_help=True)


@app.command()
@grouped(router=AtRouter)
def create(
    model: Annotated[str, typer.Option(help="Served model's name.")],
    router: AtRouter,
    name: Annotated[str, typer.Option(help="For people.")] = "",
    price: Annotated[
        float | None,
        typer.Option(
            "--price-per-engine-hour",
            help="USD; else the router's default.",
            min=0,
            callback=options.finite,
        ),
    ] = None,
    as_json: options.AsJson = False,
) -> int:
    """Make a job and print its id.

    A model may have several jobs, as with different prices; a batch then names the one it runs on.
    """

    async def work(client: Client) -> tuple[Job, list[Job], list[str]]:
        made = await client.create_job(model, name=name, price_per_engine_hour=price)
        served = [each["id"] for each in await client.models()]
        return made, await job_choice.jobs_of(client, model), served

    job, all_of_model, served = with_client(router, work)
    if as_json:
        print_json(job)
    else:
        print(job["id"])
    if model not in served:
        say(
            f"No model server serves {model!r} now, only {', '.join(served) or 'nothing'}: if that "
            f"is not meant, 'impala jobs delete {job['id']}' takes the job away."
        )
    if len(all_of_model) > 1:
        say(
            f"{model} has {len(all_of_model)} jobs now, so every batch must name its own: "
            f"'impala batch submit --job {job['id']}', or the field job_id over the API (openai "
            f"client: extra_body={{'job_id': '{job['id']}'}}). 'impala jobs list' shows them."
        )
    return 0


@app.command("list")
@grouped(router=AtRouter)
def list_jobs(
    router: AtRouter,
    as_json: options.AsJson = False,
) -> int:
    """List jobs, newest first."""
    jobs = with_client(router, lambda client: client.jobs())
    columns = ("job", "model", "precision", "name", "price/h>", "created")
    listing(jobs, columns, _row, as_json=as_json)
    return 0


@app.command()
@grouped(router=AtRouter)
def show(
    job_id: Annotated[str, typer.Argument(metavar="JOB")],
    router: AtRouter,
    as_json: options.AsJson = False,
) -> int:
    """Show one job."""
    job = with_client(router, lambda client: client.job(job_id))
    if as_json:
        print_json(job)
    else:
        names = ("job", "model", "precision", "name", "USD per engine-hour", "created")
        pairs("", zip(names, _row(job), strict=True))
    return 0


@app.command()
@grouped(router=AtRouter)
def delete(
    job_id: Annotated[str, typer.Argument(metavar="JOB")],
    router: AtRouter,
) -> int:
    """Delete a job that no unfinished batch needs."""
    with_client(router, lambda client: client.delete_job(job_id))
    say(f"{job_id} is deleted")
    return 0


def _row(job: Job) -> tuple[object, ...]:
    return (
        job["id"],
        job["model"],
        job.get("precision"),
        job.get("name"),
        job.get("price_per_engine_hour"),
        clock(job.get("created_at")),
    )
