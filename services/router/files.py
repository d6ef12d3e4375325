"""Files: content in the object store, the record in etcd; the record is what makes a file exist.

An upload streams: the content is whole in the store before its record is written, so a file is
there whole or not at all. What an upload that failed left in the store is removed, or is garbage
without a name.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncIterator

from libs.cluster.client import EtcdClient
from libs.cluster.errors import OutcomeUnknown
from libs.cluster.ops import Compare, Delete, Put
from libs.objects import Digest, ObjectStore, ObjectWriter
from libs.records import keys
from libs.records.batch import FileRecord
from services.router.core.batch_file import NotUtf8, Utf8Validator
from services.router.core.errors import BadRequest
from services.router.core.fields import check_int, missing, wrong_type, wrong_value
from services.router.core.paging import check_after
from services.router.domain_errors import FileDamaged, FileInUse, NoSuchFile
from services.router.identity import Maker
from services.router.records import Page, Stored, encode, list_page, load
from services.router.request_bytes import Hold, RequestBytes

log = logging.getLogger(__name__)

PURPOSES = ("assistants", "batch", "fine-tune", "vision", "user_data", "evals")
BATCH_EXPIRY_S = 30 * 86_400
EXPIRY_RANGE_S = (3600, 2_592_000)
_MAX_DIGITS = 10

UPLOAD_BYTES = 4 << 20
"""What an upload is reckoned to hold: chunks on their way, and what the writer collects."""
_WRITE_BYTES = 1 << 20
_ID_CHARS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_")


class Files:
    """Every method takes the caller's account and sees its files only."""

    def __init__(
        self,
        client: EtcdClient,
        objects: ObjectStore,
        maker: Maker,
        request_bytes: RequestBytes,
        *,
        max_batch_bytes: int = 200_000_000,
        max_bytes: int = 512_000_000,
    ) -> None:
        self._client = client
        self._objects = objects
        self._maker = maker
        self._request_bytes = request_bytes
        self._max_batch_bytes = max_batch_bytes
        self._max_bytes = max_bytes

    async def begin(self, account: str, owner: str) -> Upload:
        """A new upload, to be used with `async with`, of whose bytes `owner`'s share is taken.
        Raises TooManyBytes."""
        hold = self._request_bytes.hold(owner)
        hold.at_least(UPLOAD_BYTES)
        try:
            file_id = self._maker.file_id()
            writer = await self._objects.put_stream(keys.file_object(account, file_id))
        except BaseException:
            hold.release()
            raise
        return Upload(self, account, file_id, writer, hold, self._max_bytes)

    async def register(self, record: FileRecord) -> None:
        """Writes the record of a file whose content is in the store."""
        key = keys.file(record.account, record.id)
        try:
            await self._client.txn([Compare.absent(key)], [Put(key, encode(record))])
        except OutcomeUnknown:
            # The id is new, so a record there is ours.
            if await self._client.get(key) is None:
                raise

    async def get(self, account: str, file_id: str, field: str = "id") -> Stored[FileRecord]:
        """Raises NoSuchFile, for an expired file too."""
        _check_id(file_id, field)
        stored = await load(self._client, keys.file(account, file_id), FileRecord)
        if stored is None or has_expired(stored.record, self._maker):
            raise NoSuchFile(file_id, field)
        return stored

    async def page(
        self, account: str, *, limit: int, after: str, newest_first: bool, purpose: str
    ) -> Page[FileRecord]:
        """Raises BadRequest naming `after`."""
        return await list_page(
            self._client,
            keys.files_of(account),
            FileRecord,
            limit=limit,
            after=check_after(after, "file-"),
            newest_first=newest_first,
            keep=lambda file: (
                (not purpose or file.purpose == purpose) and not has_expired(file, self._maker)
            ),
        )

    async def content(self, account: str, file_id: str, start: int = 0) -> AsyncIterator[bytes]:
        """The bytes as stored, from `start`, in chunks of at most 1 MiB.

        Read from its beginning, the last chunk comes only if all were right, and FileDamaged
        instead of it otherwise: nobody takes a damaged file for a whole one.
        """
        record = (await self.get(account, file_id)).record
        chunks = self._objects.stream(keys.file_object(account, file_id), start)
        if not start:
            chunks = _checked(chunks, record)
        # What fails at once is an answer, and no body that breaks off.
        return _chain(await anext(chunks, b""), chunks)

    async def delete(self, account: str, file_id: str) -> None:
        """Raises FileInUse while a batch that is not terminal refers to it.

        A batch that is created meanwhile touches the record, which fails the compare here.
        """
        while True:
            stored = await self.get(account, file_id)
            key = keys.file(account, file_id)
            refs = await self._client.list(keys.refs_of_file(file_id), limit=1)
            if refs.entries:
                raise FileInUse(file_id, refs.entries[0].key.rsplit("/", 1)[-1])
            unchanged = Compare.mod(key) == stored.mod_revision
            if (await self._client.txn([unchanged], [Delete(key)])).succeeded:
                break
        await self._objects.delete(keys.file_object(account, file_id))

    def check_purpose(self, purpose: str) -> None:
        if purpose not in PURPOSES:
            raise BadRequest(
                f"'purpose' must be one of {', '.join(PURPOSES)}.", "purpose", "invalid_purpose"
            )

    def check_size(self, purpose: str, size: int) -> None:
        limit = self._max_batch_bytes if purpose == "batch" else self._max_bytes
        if size > limit:
            raise too_large(limit)

    def record(
        self, upload: Upload, filename: str, purpose: str, expires_after_s: int | None
    ) -> FileRecord:
        now = self._maker.unix_s()
        if expires_after_s is None and purpose == "batch":
            expires_after_s = BATCH_EXPIRY_S
        return FileRecord(
            id=upload.file_id,
            account=upload.account,
            bytes=upload.size,
            filename=filename,
            purpose=purpose,
            created_at=now,
            expires_at=None if expires_after_s is None else now + expires_after_s,
            digest=upload.digest.hex(),
        )


class Upload:
    """One file on its way in: `write` chunks, then `finish`; anything else leaves nothing behind.

    Whether the content is UTF-8 is watched from the start, because the purpose may come after it.
    """

    def __init__(
        self,
        files: Files,
        account: str,
        file_id: str,
        writer: ObjectWriter,
        hold: Hold,
        max_bytes: int,
    ) -> None:
        self.account = account
        self.file_id = file_id
        self.size = 0
        self.digest = Digest()
        """Of what was given to the writer."""
        self._files = files
        self._writer = writer
        self._hold = hold
        self._max_bytes = max_bytes
        self._buffer = bytearray()
        self._utf8 = Utf8Validator()
        self._fault: NotUtf8 | None = None
        self._finished = False

    async def __aenter__(self) -> Upload:
        return self

    async def __aexit__(self, *exc: object) -> None:
        try:
            if not self._finished:
                with contextlib.suppress(OSError):
                    await self._writer.abort()
        finally:
            self._hold.release()

    async def write(self, chunk: bytes) -> None:
        """Raises BadRequest beyond the largest size of any file, TooManyBytes for a chunk that
        there is no room for."""
        self._hold.at_least(len(chunk))
        self.size += len(chunk)
        if self.size > self._max_bytes:
            raise too_large(self._max_bytes)
        if self._fault is None:
            try:
                self._utf8.push(chunk)
            except NotUtf8 as fault:
                self._fault = fault
        self._buffer += chunk
        if len(self._buffer) >= _WRITE_BYTES:
            await self._flush()

    async def finish(self, filename: str, purpose: str, expires_after_s: int | None) -> FileRecord:
        """Checks the whole, makes the content visible, then the record."""
        self._files.check_purpose(purpose)
        self._files.check_size(purpose, self.size)
        if purpose == "batch":
            if not self.size:
                raise BadRequest("The file is empty.", "file", "empty_file")
            self._check_text()
        await self._flush()
        await self._writer.close()
        self._finished = True
        record = self._files.record(self, filename, purpose, expires_after_s)
        await self._files.register(record)
        return record

    def _check_text(self) -> None:
        try:
            if self._fault is not None:
                raise self._fault
            self._utf8.finish()
        except NotUtf8 as fault:
            raise BadRequest(str(fault), "file", "invalid_utf8") from None

    async def _flush(self) -> None:
        if self._buffer:
            data, self._buffer = bytes(self._buffer), bytearray()
            self.digest.update(data)
            await self._writer.write(data)


async def _chain(first: bytes, others: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    async with contextlib.aclosing(others):  # type: ignore[type-var]
        if first:
            yield first
        async for chunk in others:
            yield chunk


async def _checked(chunks: AsyncIterator[bytes], record: FileRecord) -> AsyncIterator[bytes]:
    digest, held = Digest(), b""
    async with contextlib.aclosing(chunks):  # type: ignore[type-var]
        async for chunk in chunks:
            digest.update(chunk)
            if held:
                yield held
            held = chunk
    if not digest.fits(record.bytes, record.digest):
        fields = {"account": record.account, "file": record.id}
        log.error("a file's content is damaged", extra=fields)
        raise FileDamaged(record.id)
    if held:
        yield held


def has_expired(record: FileRecord, maker: Maker) -> bool:
    return record.expires_at is not None and record.expires_at <= maker.unix_s()


def too_large(limit: int) -> BadRequest:
    return BadRequest(f"The file is larger than {limit} bytes.", "file", "file_too_large")


def parse_expiry(field: str, anchor: object, seconds: object) -> int:
    """Seconds after creation. `field` is what holds the two: "expires_after"."""
    if anchor is None:
        raise missing(f"{field}.anchor")
    if not isinstance(anchor, str):
        raise wrong_type(f"{field}.anchor", "a string", anchor)
    if anchor != "created_at":
        raise wrong_value(f"{field}.anchor", "'created_at'", anchor)
    if seconds is None:
        raise missing(f"{field}.seconds")
    return check_int(f"{field}.seconds", seconds, *EXPIRY_RANGE_S)


def form_expiry(anchor: str | None, seconds: str | None) -> int | None:
    """As `parse_expiry`, of a form, where all is text; None where neither is given."""
    if anchor is None and seconds is None:
        return None
    is_number = seconds is not None and seconds.isdecimal() and len(seconds) <= _MAX_DIGITS
    value = int(seconds) if is_number and seconds is not None else seconds
    return parse_expiry("expires_after", anchor, value)


def check_expiry_s(field: str, seconds: float) -> int | None:
    """Of a message, where 0 is none; whole seconds."""
    return check_int(field, seconds, *EXPIRY_RANGE_S) if seconds else None


def _check_id(file_id: str, field: str) -> None:
    # Ids become parts of keys: nothing that could reach into another's subtree gets there.
    if not file_id or len(file_id) > 128 or not _ID_CHARS.issuperset(file_id):
        raise NoSuchFile(file_id, field)
