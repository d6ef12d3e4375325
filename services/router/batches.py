"""Batches: created and cancelled here, moved on by the scheduler's leaders only.

Creation is one transaction: the record, the input file's reference, the idempotency marker. It
touches the file's record, so that a concurrent delete of the file fails its compare. Content is
validated afterwards, by Index: a client polls for `failed`, it gets no 400 for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from libs.cluster.client import EtcdClient
from libs.cluster.entry import Entry
from libs.cluster.errors import OutcomeUnknown
from libs.cluster.ops import Compare, Put
from libs.records import keys
from libs.records.batch import TERMINAL, BatchRecord, FileRecord, RunRecord
from services.router.core.errors import BadRequest
from services.router.core.paging import check_after
from services.router.core.params import CHAT, COMPLETIONS
from services.router.core.windows import completion_window_s
from services.router.domain_errors import BatchEnded, NoSuchBatch, NoSuchJob
from services.router.files import Files
from services.router.idempotency import Once
from services.router.identity import Maker
from services.router.jobs import Jobs
from services.router.records import Stored, decode, encode, list_page, load

BATCH_ENDPOINTS = (CHAT, COMPLETIONS)
MAX_PAIRS, MAX_KEY_CHARS, MAX_VALUE_CHARS = 16, 64, 512


@dataclass(frozen=True, slots=True, kw_only=True)
class NewBatch:
    """A checked request to create a batch."""

    input_file_id: str
    endpoint: str
    completion_window: str
    job_id: str = ""
    metadata: dict[str, str] | None = None
    output_expires_after_s: int | None = None
    idempotency_key: str = ""


class BatchState(NamedTuple):
    """A batch as three keys of etcd tell it."""

    record: BatchRecord
    run: RunRecord | None
    cancel_at: int | None
    """Unix seconds of the cancel intent."""


class BatchPage(NamedTuple):
    states: list[BatchState]
    has_more: bool


class Batches:
    """Every method takes the caller's account and sees its batches only."""

    def __init__(self, client: EtcdClient, maker: Maker, files: Files, jobs: Jobs) -> None:
        self._client = client
        self._maker = maker
        self._files = files
        self._jobs = jobs

    async def create(self, account: str, new: NewBatch) -> BatchState:
        """Raises BadRequest or NotFound naming the field, or IdempotencyKeyReused."""
        check_endpoint(new.endpoint)
        window_s = completion_window_s(new.completion_window)
        check_metadata(new.metadata)
        asked = replace(new, idempotency_key="")
        once = Once(self._client, account, "batch", new.idempotency_key, asked)
        made = await once.made()
        if made is not None:
            return await self.get(account, made)
        if new.job_id:
            await self._check_job(account, new.job_id)
        while True:
            file = await self._files.get(account, new.input_file_id, "input_file_id")
            if file.record.purpose != "batch":
                raise BadRequest(
                    f"The file's purpose is '{file.record.purpose}', but must be 'batch'.",
                    "input_file_id",
                    "invalid_purpose",
                )
            created = await self._write(account, self._record(account, new, window_s), once, file)
            if created is not None:
                return created

    async def _check_job(self, account: str, job_id: str) -> None:
        try:
            await self._jobs.load(account, job_id)
        except NoSuchJob:
            raise NoSuchJob(job_id, "job_id") from None

    def _record(self, account: str, new: NewBatch, window_s: int | None) -> BatchRecord:
        now = self._maker.unix_s()
        return BatchRecord(
            id=self._maker.batch_id(),
            account=account,
            endpoint=new.endpoint,
            input_file_id=new.input_file_id,
            completion_window=new.completion_window,
            created_at=now,
            expires_at=None if window_s is None else now + window_s,
            job_id=new.job_id,
            run_id=self._maker.run_id(),
            metadata=new.metadata,
            output_expires_after_s=new.output_expires_after_s,
        )

    async def _write(
        self, account: str, record: BatchRecord, once: Once, file: Stored[FileRecord]
    ) -> BatchState | None:
        """None: the file's record changed meanwhile, look again."""
        key = keys.batch(account, record.id)
        file_key = keys.file(account, file.record.id)
        compares = [
            Compare.absent(key),
            Compare.mod(file_key) == file.mod_revision,
            *once.compares(),
        ]
        puts = [
            Put(key, encode(record)),
            Put(keys.file_ref(file.record.id, record.id), b""),
            Put(file_key, encode(file.record)),
            *await once.puts(record.id),
        ]
        try:
            result = await self._client.txn(compares, puts, once.reads())
        except OutcomeUnknown:
            # The id is new: a record there is this one.
            if await self._client.get(key) is None:
                raise
            return BatchState(record, None, None)
        if result.succeeded:
            return BatchState(record, None, None)
        earlier = result.entry() if once.reads() else None
        return None if earlier is None else await self.get(account, once.read(earlier))

    async def get(self, account: str, batch_id: str) -> BatchState:
        """Raises NoSuchBatch."""
        stored = await self._load(account, batch_id)
        return (await self._complete([stored.record]))[0]

    async def _load(self, account: str, batch_id: str) -> Stored[BatchRecord]:
        if "/" in batch_id or not batch_id or not batch_id.isprintable():
            raise NoSuchBatch(batch_id)
        stored = await load(self._client, keys.batch(account, batch_id), BatchRecord)
        if stored is None:
            raise NoSuchBatch(batch_id)
        return stored

    async def page(self, account: str, *, limit: int, after: str) -> BatchPage:
        """Newest first. Raises BadRequest naming `after`."""
        after = check_after(after, "batch_")
        page = await list_page(
            self._client, keys.batches_of(account), BatchRecord, limit=limit, after=after
        )
        return BatchPage(await self._complete(page.records), page.has_more)

    async def cancel(self, account: str, batch_id: str) -> BatchState:
        """Writes the intent, once; raises BatchEnded after the end.

        The batch's record is compared, so that no intent is left behind by a cancel that lost
        the race against the end.
        """
        while True:
            stored = await self._load(account, batch_id)
            if stored.record.status in TERMINAL:
                raise BatchEnded(stored.record.status)
            intent = keys.cancel(batch_id)
            unchanged = Compare.mod(keys.batch(account, batch_id)) == stored.mod_revision
            put = Put(intent, str(self._maker.unix_s()).encode())
            await self._client.txn([unchanged, Compare.absent(intent)], [put])
            state = await self.get(account, batch_id)
            if state.cancel_at is not None:
                return state

    async def _complete(self, records: Sequence[BatchRecord]) -> list[BatchState]:
        """With the runs and cancel intents of the batches, which may have moved on meanwhile.

        A batch's end takes its intent away in one transaction, so both are read in one: a batch
        that was shown as cancelling is never shown as going on again. Runs are read after that, so
        that the counts of a batch that has ended are the last ones.
        """
        asked = [
            key
            for each in records
            for key in (keys.batch(each.account, each.id), keys.cancel(each.id))
        ]
        found = await self._client.get_many(asked)
        runs = await self._client.get_many([keys.run(each.run_id) for each in records])
        return [
            _state(decode(now, BatchRecord) if now else record, run, intent)
            for record, now, run, intent in zip(records, found[::2], runs, found[1::2], strict=True)
        ]


def _state(record: BatchRecord, run: Entry | None, intent: Entry | None) -> BatchState:
    return BatchState(
        record,
        decode(run, RunRecord) if run else None,
        int(float(intent.value)) if intent else None,
    )


def check_endpoint(endpoint: object) -> None:
    if endpoint not in BATCH_ENDPOINTS:
        raise BadRequest(
            f"'endpoint' must be one of {', '.join(BATCH_ENDPOINTS)}.",
            "endpoint",
            "invalid_endpoint",
        )


def check_metadata(metadata: object) -> None:
    """16 pairs of strings, keys of 64 and values of 512 characters at most."""
    if metadata is None:
        return
    if not isinstance(metadata, dict):
        raise BadRequest("'metadata' must be an object.", "metadata", "invalid_type")
    if len(metadata) > MAX_PAIRS:
        raise BadRequest(
            f"'metadata' has {len(metadata)} pairs, but at most {MAX_PAIRS} are allowed.",
            "metadata",
            "invalid_value",
        )
    for key, value in metadata.items():
        if len(key) > MAX_KEY_CHARS:
            raise BadRequest(
                f"'metadata' has a key of more than {MAX_KEY_CHARS} characters.",
                "metadata",
                "invalid_value",
            )
        if not isinstance(value, str) or len(value) > MAX_VALUE_CHARS:
            raise BadRequest(
                f"'metadata.{key}' must be a string of at most {MAX_VALUE_CHARS} characters.",
                f"metadata.{key}",
                "invalid_value",
            )
