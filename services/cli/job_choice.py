"""Which job a batch runs on. A model may have several: then a batch must name its own."""

from __future__ import annotations

from collections.abc import Sequence

from services.cli.client import Client, Job
from services.cli.errors import ApiError, Usage

NAMED = 5


async def jobs_of(client: Client, model: str) -> list[Job]:
    """Newest first."""
    return [job for job in await client.jobs() if job["model"] == model]


async def named(client: Client, job_id: str, model: str = "") -> Job:
    """The job that was asked for. Usage if there is none, or if it is not for `model`, if given."""
    try:
        job = await client.job(job_id)
    except ApiError as error:
        if error.code != "job_not_found":
            raise
        raise Usage(
            f"There is no job {job_id!r}: 'impala jobs list' shows those that there are."
        ) from error
    if model and job["model"] != model:
        raise Usage(f"The job {job_id} is for the model {job['model']!r}, not for {model!r}.")
    return job


async def check(client: Client, wanted: str, models: Sequence[str]) -> None:
    """That a batch whose lines name `models` can run on the job `wanted`; empty = none was named.

    Raises Usage. Lines that are wrong in themselves (no model, or several) are the router's to
    judge, which names every fault with its line.
    """
    model = models[0] if len(models) == 1 else ""
    if wanted:
        await named(client, wanted, model)
        return
    jobs = await jobs_of(client, model) if model else []
    if model and not jobs and model in [each["id"] for each in await client.models()]:
        raise Usage(
            f"There is no job for the model {model!r} yet: make one with 'impala jobs create "
            f"--model {model}'."
        )
    if len(jobs) > 1:
        ids = ", ".join(job["id"] for job in jobs[:NAMED])
        more = f" and {len(jobs) - NAMED} more" if len(jobs) > NAMED else ""
        raise Usage(
            f"The model {model!r} has {len(jobs)} jobs ({ids}{more}): name one with --job; "
            "'impala jobs list' shows them."
        )
