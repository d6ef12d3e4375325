"""Index: a batch's input file read once, every line checked, and an entry a line written.

Streams both ways: memory is one chunk, one line, and 16 bytes a custom_id. Repeating it for the
same run writes the same object.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from dataclasses import dataclass, replace

from libs.cluster.epochs import Epochs
from libs.objects import Digest, ObjectStore
from libs.records import keys
from libs.records.batch import Job
from libs.records.index import IndexEntry, pack_entries
from services.router.core.batch_file import LineSplitter, RawLine
from services.router.core.batch_line import (
    MODEL_NOT_FOUND,
    BatchLine,
    FileLimits,
    FileReport,
    FileValidator,
    LineError,
    LineRules,
)
from services.router.core.line_prefix import custom_id_hash, prefix_key
from services.router.domain_errors import FileDamaged, NoSuchJob
from services.router.fleets import Fleets
from services.router.jobs import Jobs

PROGRESS_S = 1.0
DEFAULT_MAX_ERRORS = 100

JOB_NOT_FOUND = "job_not_found"
JOB_REQUIRED = "job_required"
NAMED_JOBS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexOrder:
    epoch: int
    """Of the intake leader that asks."""
    account: str
    input_object: str
    endpoint: str
    job_id: str
    """Empty: resolved from the lines' model."""
    index_object: str
    input_bytes: int = 0
    """As noted at the file's upload; 0 = unknown."""
    input_digest: str = ""
    max_errors: int = DEFAULT_MAX_ERRORS


@dataclass(frozen=True, slots=True)
class Indexed:
    """`errors` not empty: the file fails, and no index was written."""

    lines: int
    errors: tuple[LineError, ...]
    job_id: str
    model: str
    input_bytes: int
    index_digest: str = ""


@dataclass(slots=True)
class Progress:
    bytes_done: int = 0
    bytes_total: int = 0
    lines: int = 0
    done: Indexed | None = None


class Indexer:
    def __init__(
        self,
        objects: ObjectStore,
        jobs: Jobs,
        fleets: Fleets,
        epochs: Epochs,
        limits: FileLimits,
    ) -> None:
        self._objects = objects
        self._jobs = jobs
        self._fleets = fleets
        self._epochs = epochs
        self._limits = limits

    async def index(self, order: IndexOrder) -> AsyncGenerator[Progress, None]:
        """Progress about once a second; the last one has `done`.

        Raises Aborted for a leader that is none, ObjectNotFound for an input that is not
        there, FileDamaged for one that is not what was stored.
        """
        await self._epochs.check(keys.ELECTION_INTAKE, order.epoch)
        progress = Progress()
        progress.bytes_total = (await self._objects.head(order.input_object)).size
        work = asyncio.create_task(self._index(order, progress))
        try:
            while not work.done():
                await asyncio.wait({work}, timeout=PROGRESS_S)
                if not work.done():
                    yield replace(progress)
            progress.done = work.result()
            yield progress
        finally:
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)

    async def _index(self, order: IndexOrder, progress: Progress) -> Indexed:
        try:
            job = await self._jobs.load(order.account, order.job_id) if order.job_id else None
        except NoSuchJob as error:
            fault = LineError(JOB_NOT_FOUND, None, error.message, "job_id")
            return Indexed(0, (fault,), order.job_id, "", progress.bytes_total)
        try:
            report, digest = await self._read(order, job, progress)
        except FileDamaged:
            # Perhaps it was the way and not the store.
            progress.bytes_done = progress.lines = 0
            report, digest = await self._read(order, job, progress)
        errors, job_id = report.errors, order.job_id
        if report.ok and job is None:
            job_id, fault_of_jobs = self._only_job(order.account, report.model or "")
            errors = (fault_of_jobs,) if fault_of_jobs else ()
        if errors:
            await self._objects.delete(order.index_object)
        return Indexed(
            report.lines,
            errors,
            job_id,
            report.model or "",
            report.bytes,
            "" if errors else digest,
        )

    async def _read(
        self, order: IndexOrder, job: Job | None, progress: Progress
    ) -> tuple[FileReport, str]:
        """What the input holds, and the digest of the index that was written of it."""
        rules = LineRules(order.endpoint, job.model if job else None, self._models(order.account))
        limits = replace(self._limits, max_errors=order.max_errors or DEFAULT_MAX_ERRORS)
        reader = _Reader(FileValidator(rules, limits))
        source, index = Digest(), Digest()
        writer = await self._objects.put_stream(order.index_object)

        async def write(entries: bytes) -> None:
            if entries:
                index.update(entries)
                await writer.write(entries)

        async with contextlib.AsyncExitStack() as stack:
            stack.push_async_callback(writer.abort)
            async for chunk in self._objects.stream(order.input_object):
                source.update(chunk)
                if not reader.validator.full:
                    # Parsing a chunk takes milliseconds: not on the loop.
                    await write(await asyncio.to_thread(reader.push, chunk))
                progress.bytes_done += len(chunk)
                progress.lines = reader.lines
            # Before a line is blamed: what is wrong with it may be the store's fault.
            _check(order, source)
            if not reader.validator.full:
                await write(await asyncio.to_thread(reader.finish))
            report = reader.validator.finish(progress.bytes_total)
            if report.ok:
                await writer.close()
        return report, index.hex()

    def _models(self, account: str) -> frozenset[str]:
        """What a line may name: the models of the account's jobs, and those that are served."""
        own = {job.model for job in self._jobs.of_account(account)}
        return frozenset(own | self._fleets.models().keys())

    def _only_job(self, account: str, model: str) -> tuple[str, LineError | None]:
        jobs = [job for job in self._jobs.of_account(account) if job.model == model]
        if len(jobs) == 1:
            return jobs[0].id, None
        if not jobs:
            message = (
                f"The account has no job for the model {model!r}: create one with 'impala jobs "
                f"create --model {model}'."
            )
            return "", LineError(MODEL_NOT_FOUND, None, message, "job_id")
        names = ", ".join(job.id for job in jobs[:NAMED_JOBS])
        more = f" and {len(jobs) - NAMED_JOBS} more" if len(jobs) > NAMED_JOBS else ""
        message = (
            f"The account has {len(jobs)} jobs for the model {model!r} ({names}{more}): create the "
            "batch with the job_id of one of them; 'impala jobs list' shows all."
        )
        return "", LineError(JOB_REQUIRED, None, message, "job_id")


def _check(order: IndexOrder, source: Digest) -> None:
    if order.input_digest and not source.fits(order.input_bytes, order.input_digest):
        raise FileDamaged(order.input_object.rpartition("/")[2])


class _Reader:
    """Chunks in, packed index entries out."""

    def __init__(self, validator: FileValidator) -> None:
        self.validator = validator
        self.lines = 0
        self._splitter = LineSplitter()

    def push(self, chunk: bytes) -> bytes:
        return self._entries(list(self._splitter.push(chunk)))

    def finish(self) -> bytes:
        return self._entries(list(self._splitter.finish()))

    def _entries(self, raws: list[RawLine]) -> bytes:
        self.lines += len(raws)
        found = [line for raw in raws if (line := self.validator.push(raw)) is not None]
        return pack_entries(map(_entry, found))


def _entry(line: BatchLine) -> IndexEntry:
    return IndexEntry(
        line=line.line,
        offset=line.offset,
        length=line.length,
        prefix_key=prefix_key(line.body),
        custom_id_hash=custom_id_hash(line.custom_id),
    )
