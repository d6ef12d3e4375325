"""`impala run` and `impala quickstart`: a file of requests in, a file of answers out.

Uses the instance of a state folder if it serves the model; else starts one, in a folder of its own
that goes with it, and stops it at the end.
"""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

from libs.demo.model import DEMO
from services.cli import batch_run, job_choice
from services.cli.at_router import AtRouter, Found
from services.cli.batch_run import Fetched
from services.cli.client import Batch, Client, Run
from services.cli.core.fit import Serving, Wanted, misfit
from services.cli.core.input_check import (
    ENDPOINTS,
    InputSummary,
    foreign_endpoint,
    hopeless,
    renamed,
    summarize,
)
from services.cli.errors import FAILED, INTERRUPTED, SOME_LINES_FAILED, CliError, Usage
from services.cli.instance import LocalInstance, ensure_job
from services.cli.interrupts import Interrupts
from services.cli.launch import PortWishes, Settings
from services.cli.output import BatchProgress, StartReporter, say
from services.cli.state_dir import StateDir, temporary


@dataclass(frozen=True, kw_only=True)
class OneShot:
    """model: as `--model` has it, empty = what the lines name. precision: None = any; "auto" too,
    as far as an instance that runs is concerned.
    state: the folder that was named; None = the default one, or a temporary one to start in.
    url: a router that is used as it is; empty = the instance of `state`, or one that is started.
    ca, tls: whom to trust there and what to show, as AtRouter has them.
    job: of the instance that is used; empty = the model's newest.
    substitute: lines that name another model, or none, get this one's name."""

    input: Path
    output: Path
    model: str = ""
    precision: str | None = None
    window: str = "24h"
    state: Path | None = None
    url: str = ""
    ca: Path | None = None
    tls: Path | None = None
    api_key: str = ""
    job: str = ""
    substitute: bool = False
    force: bool = False
    always_start: bool = False

    @property
    def errors(self) -> Path:
        """Beside the output: `out.jsonl` and `out.errors.jsonl`."""
        return self.output.with_name(f"{self.output.stem}.errors{self.output.suffix or '.jsonl'}")


@dataclass(frozen=True, kw_only=True)
class Answered:
    batch: Batch
    run: Run | None
    files: Fetched
    interrupted: bool

    @property
    def exit_code(self) -> int:
        if self.interrupted:
            return INTERRUPTED
        if self.batch["status"] in ("failed", "cancelled"):
            return FAILED
        return SOME_LINES_FAILED if self.files.errors else 0


@dataclass(frozen=True, slots=True)
class _Target:
    """model: as it is called there. stays: it is still there when this command has ended."""

    client: Client
    model: str
    job_id: str
    stays: bool


async def answer(wish: OneShot) -> Answered:
    """Raises CliError for what could not be started, read, or written."""
    summary = await asyncio.to_thread(_read, wish)
    model = _model(wish, summary)
    endpoint = endpoint_of(summary)
    with Interrupts() as interrupts:
        async with _target(wish, model, interrupts) as target:
            client = target.client
            async with _input(wish, summary, target.model) as source:
                batch = await batch_run.submit(
                    client, source, endpoint=endpoint, window=wish.window, job_id=target.job_id
                )
            if target.stays:
                say(f"batch {batch['id']}")
            batch, interrupted = await _follow(target, batch["id"], interrupts)
            files = Fetched(None, None)
            if batch["status"] != "failed":
                files = await batch_run.fetch(client, batch, wish.output, wish.errors)
            run_id = batch.get("run_id")
            run = await client.run(run_id) if run_id else None
    return Answered(batch=batch, run=run, files=files, interrupted=interrupted)


async def _follow(target: _Target, batch_id: str, interrupts: Interrupts) -> tuple[Batch, bool]:
    """The batch as it ended. A first interrupt cancels it and waits for its finished lines, a
    second one gives up."""
    client = target.client
    cancelling: list[asyncio.Task[None]] = []
    with BatchProgress() as bar:
        following = asyncio.create_task(batch_run.follow(client, batch_id, bar.show))

        def interrupt() -> None:
            if not cancelling:
                bar.say("cancelling: what is answered is kept; a second Ctrl-C gives that up")
                cancelling.append(asyncio.create_task(batch_run.cancel(client, batch_id)))
            else:
                following.cancel()

        interrupts.call(interrupt)
        try:
            batch = await following
        except asyncio.CancelledError:
            if not cancelling:
                raise
            stopped = CliError(
                f"Given up, nothing was written: 'impala batch results {batch_id} -o FILE' gets "
                "what was answered."
                if target.stays
                else "Given up, nothing was written: run the command again to start anew."
            )
            stopped.exit_code = INTERRUPTED
            raise stopped from None
        finally:
            following.cancel()
            for task in cancelling:
                task.cancel()
    return batch, bool(cancelling)


@contextlib.asynccontextmanager
async def _target(wish: OneShot, model: str, interrupts: Interrupts) -> AsyncIterator[_Target]:
    """Somewhere that serves the model."""
    running = _running(wish, model)
    if running is not None:
        router, name = running
        async with router.client() as client:
            yield _Target(client, name, await _job(client, name, wish.job), stays=True)
        return
    if wish.job:
        raise Usage(
            f"--job {wish.job} is a job of an instance that runs, and none that fits does: leave "
            "it out, or name the instance with --state or --url."
        )
    state = StateDir.named(wish.state) if wish.state else temporary()
    settings = Settings(model=model, precision=wish.precision or "auto", ports=PortWishes(http=0))
    with StartReporter() as reporter:
        instance = LocalInstance(state, settings, reporter)
        interrupts.call(instance.interrupt)
        try:
            async with instance, Client(instance.url) as client:
                reporter.settled()
                job = await ensure_job(client, model)
                if wish.state:
                    await _say_unfinished(client)
                yield _Target(client, model, job["id"], stays=False)
                interrupts.call(instance.interrupt)
        finally:
            if wish.state is None:
                state.remove()


async def _say_unfinished(client: Client) -> None:
    """Batches of a run that was killed go on in a folder that is used again."""
    left = [b["id"] for b in await client.batches(100) if b["status"] not in batch_run.TERMINAL]
    if left:
        say(
            f"{len(left)} unfinished in this folder go on beside this one: {', '.join(left)} "
            "('impala batch cancel' ends one)."
        )


def _running(wish: OneShot, model: str) -> tuple[Found, str] | None:
    """The router to use and the model's name there; None = an instance is to be started.
    Raises CliError where that cannot be."""
    if wish.always_start:
        return None
    if wish.url:
        if wish.precision:
            raise Usage(
                f"--precision is for an instance that is started here, not for {wish.url}: leave "
                "it out, or --url (IMPALA_URL)."
            )
        at = AtRouter(url=wish.url, ca=wish.ca, tls=wish.tls, api_key=wish.api_key)
        return at.found(), model
    folder = StateDir.named(wish.state)
    running = folder.instance()
    if running is None or running.phase != "ready":
        return None
    why = misfit(
        Serving(running.source, running.model, running.precision),
        Wanted(
            model,
            Settings(model=model).source if wish.substitute else None,
            None if wish.precision == "auto" else wish.precision,
        ),
    )
    if not why:
        return AtRouter(api_key=wish.api_key, state=wish.state).found(), running.model
    ask = f"ask for what it serves (--model {running.model} --substitute-model answers with it)"
    if wish.state:
        raise CliError(
            f"The instance in {folder.path} does not fit, {why}: {ask}, stop it with 'impala "
            "down', or leave out --state to start one for this run."
        )
    say(
        f"The instance in {folder.path} does not fit, {why}: one is started for this run (to use "
        f"the other, {ask})."
    )
    return None


async def _job(client: Client, model: str, wanted: str) -> str:
    """The id of the wanted job, else of the model's newest, which is said if it has several."""
    if wanted:
        return (await job_choice.named(client, wanted, model))["id"]
    served = [each["id"] for each in await client.models()]
    if model not in served:
        raise CliError(
            f"{client.url} does not serve the model {model!r} but {', '.join(served) or 'none'}: "
            "name that with --model and --substitute-model, or leave out --url."
        )
    jobs = await job_choice.jobs_of(client, model)
    if len(jobs) > 1:
        say(
            f"{model} has {len(jobs)} jobs: this runs on the newest, {jobs[0]['id']}; name "
            "another with --job."
        )
    return (await ensure_job(client, model))["id"]


@contextlib.asynccontextmanager
async def _input(wish: OneShot, summary: InputSummary, name: str) -> AsyncIterator[Path]:
    """The file to upload: the input, or a copy in which every line names the model."""
    if not wish.substitute or (not summary.unnamed and summary.models.keys() <= {name}):
        yield wish.input
        return
    with tempfile.TemporaryDirectory(prefix="impala-run-") as folder:
        copy = Path(folder) / wish.input.name
        # In a thread: an instance that was started is supervised by this loop.
        await asyncio.to_thread(_copy, wish.input, copy, name)
        yield copy


def _copy(source: Path, copy: Path, name: str) -> None:
    with source.open("rb") as lines, copy.open("wb") as file:
        file.writelines(renamed(lines, name))


def _read(wish: OneShot) -> InputSummary:
    for path in (wish.output, wish.errors):
        if path.is_dir():
            raise Usage(f"{path} is a folder: name a file with --output.")
        if _same_file(path, wish.input):
            raise Usage(f"{path} is the input {wish.input}: name another --output.")
        if path.exists() and not wish.force:
            raise Usage(f"{path} exists: give --force to overwrite it, or another --output.")
    if not wish.output.parent.is_dir():
        raise Usage(f"The folder {wish.output.parent} does not exist: make it first.")
    # Known now and not after an hour: answers must have a place.
    batch_run.check_writable(wish.output)
    return read_input(wish.input)


def _same_file(one: Path, other: Path) -> bool:
    """By whatever path or link."""
    try:
        return one.samefile(other)
    except OSError:
        return False


def read_input(path: Path) -> InputSummary:
    """What the file asks for. Raises Usage for one that cannot be read, or that is no batch."""
    try:
        with path.open("rb") as file:
            summary = summarize(file)
    except OSError as error:
        raise Usage(f"{path} cannot be read: {error.strerror}.") from error
    if why := hopeless(summary):
        raise Usage(f"{path} {why}. Write one request a line, as in examples/agent_steps.jsonl.")
    return summary


def endpoint_of(summary: InputSummary) -> str:
    """What the batch is for. Raises Usage for lines that name what no batch is for."""
    if why := foreign_endpoint(summary):
        raise Usage(f"{why}.")
    return next(iter(summary.endpoints), ENDPOINTS[0])


def _model(wish: OneShot, summary: InputSummary) -> str:
    """What is to answer."""
    if wish.substitute:
        if wish.model:
            return wish.model
        raise Usage(f"--substitute-model needs --model: {_models_to_name(wish)}.")
    asked = list(summary.models)
    if len(asked) > 1:
        first, second = asked[:2]
        raise Usage(
            f"Line {summary.models[second]} asks for the model {second!r} and line "
            f"{summary.models[first]} for {first!r}: a batch is for one model, so make two files, "
            "or give --model and --substitute-model."
        )
    model = wish.model or (asked[0] if asked else "")
    if not model:
        raise Usage(
            f"No line names a model: give --substitute-model and --model, {_models_to_name(wish)}."
        )
    if summary.unnamed:
        raise Usage(
            f"Line {summary.unnamed} names no model: give --substitute-model to answer it with "
            f"{model!r}."
        )
    if asked and asked[0] != model:
        raise Usage(
            f"Line {summary.models[asked[0]]} asks for the model {asked[0]!r}, but --model is "
            f"{model!r}: give --model {asked[0]}, or --substitute-model to answer it with "
            f"{model!r} all the same."
        )
    return model


def _models_to_name(wish: OneShot) -> str:
    """What --model can be."""
    if wish.url:
        return f"one that {wish.url}/v1/models lists"
    running = StateDir.named(wish.state).instance()
    served = f"{running.model} (the running instance serves it)" if running else DEMO.alias
    return f"as --model {served}, or a folder, a .gguf file or a hub id"
