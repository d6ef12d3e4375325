"""A batch from a file here to its answers here, over the API."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from services.cli.client import Batch, Client, failed_lines
from services.cli.core.progress import Meter, Progress
from services.cli.errors import ApiError, CliError, NotReachable

TERMINAL = frozenset({"completed", "failed", "expired", "cancelled"})
POLL_S = 0.25
PATIENCE_S = 120.0
"""How long a router that does not answer is waited for: it may be about to be started again."""

Show = Callable[[str, Progress], None]
"""(status of the batch, how far it is)"""


@dataclass(frozen=True, slots=True)
class Fetched:
    """Where the lines went; None for a kind of which there are none."""

    output: Path | None
    errors: Path | None


async def submit(
    client: Client, path: Path, *, endpoint: str, window: str, job_id: str = ""
) -> Batch:
    """Uploads the file and makes a batch of it."""
    file = await client.upload(path)
    # With the key a repeated request cannot make a second batch.
    key = f"cli {file['id']} {os.urandom(8).hex()}"

    async def create() -> Batch:
        return await client.create_batch(
            file["id"], endpoint, window, job_id=job_id, idempotency_key=key
        )

    return await _patiently(create)


async def follow(client: Client, batch_id: str, show: Show) -> Batch:
    """Polls until the batch has ended and returns it as it ended."""
    meter = Meter()
    while True:
        batch = await _patiently(lambda: client.batch(batch_id))
        show(batch["status"], observe(meter, batch))
        if batch["status"] in TERMINAL:
            return batch
        await asyncio.sleep(POLL_S)


async def look(client: Client, batch_id: str) -> Batch:
    """The batch now; a router that is being started again is waited for."""
    return await _patiently(lambda: client.batch(batch_id))


async def cancel(client: Client, batch_id: str) -> None:
    """Asks for it; a batch that has ended meanwhile stays as it is."""
    with contextlib.suppress(ApiError):
        await _patiently(lambda: client.cancel_batch(batch_id))


async def fetch(client: Client, batch: Batch, output: Path, errors: Path) -> Fetched:
    """Writes the batch's files. `output` is written even with no line in it, `errors` is not, and
    one that an earlier run left is removed: it would be taken for this one's."""
    output_id, error_id = batch.get("output_file_id"), batch.get("error_file_id")
    await download(client, output_id, output)
    if error_id:
        await download(client, error_id, errors)
    else:
        await asyncio.to_thread(errors.unlink, missing_ok=True)
    return Fetched(output if output_id else None, errors if error_id else None)


async def download(client: Client, file_id: str | None, path: Path) -> None:
    """Whole or not at all; an empty file for None."""
    fresh = _fresh(path)
    try:
        with fresh.open("wb") as file:
            if file_id:
                async for chunk in client.content(file_id):
                    file.write(chunk)
        fresh.replace(path)
    except OSError as error:
        raise CliError(f"{path} cannot be written: {error.strerror}.") from error
    finally:
        with contextlib.suppress(OSError):
            fresh.unlink(missing_ok=True)


def check_writable(path: Path) -> None:
    """That `download` can make a file there. Raises CliError."""
    probe = _fresh(path)
    try:
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise CliError(f"{path} cannot be written: {error.strerror}.") from error


def _fresh(path: Path) -> Path:
    """Beside it, so that it can take its name in one step."""
    return path.with_name(f".{path.name}.{os.getpid()}.new")


def observe(meter: Meter, batch: Batch) -> Progress:
    counts, usage = batch["request_counts"], batch["usage"]
    return meter.observe(
        time.monotonic(),
        completed=counts["completed"],
        failed=failed_lines(batch),
        unanswered=batch.get("unanswered", 0),
        rerun=batch.get("rerun", 0),
        total=counts["total"],
        tokens=usage.get("output_tokens", 0),
        cost=batch.get("processing_cost", 0.0),
    )


async def _patiently(ask: Callable[[], Awaitable[Batch]]) -> Batch:
    """Asks again while nobody answers or the cluster is away, for PATIENCE_S in all. `ask` must be
    safe to repeat."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            return await ask()
        except NotReachable:
            if time.monotonic() >= deadline:
                raise
        except ApiError as error:
            if error.status not in (429, 500, 502, 503, 504) or time.monotonic() >= deadline:
                raise
        await asyncio.sleep(POLL_S)
