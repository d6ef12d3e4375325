"""How objects come into being: staged files in a local folder, obstore elsewhere."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from pathlib import Path
from types import TracebackType
from typing import Self

import obstore
from obstore import exceptions as obstore_errors
from obstore.store import ObjectStore as Backend

from libs.objects.errors import (
    STORE_FAULTS,
    InvalidKey,
    ObjectNotFound,
    ObjectStoreError,
    StoreUnavailable,
    folder_gone,
    from_obstore,
    from_os,
)
from libs.objects.staging import StagedFile, is_there, sweep
from libs.objects.uploads import S3Uploads

PART_BYTES = 8 << 20
"""Bytes held before a part goes to a remote store (S3's least is 5 MiB)."""


class ObjectWriter(ABC):
    """One object being written; nothing is visible until `close` has returned.

    As `async with`, the block's clean end closes and an exception in it aborts. One task at a
    time. After an error from `write` or `close` only `abort` makes sense.
    """

    @abstractmethod
    async def write(self, data: bytes) -> None:
        """Appends. Raises `StoreFull`, `ReadOnly`, `StoreUnavailable`."""

    @abstractmethod
    async def close(self) -> None:
        """Makes the whole object visible at once, in place of an older one, durably."""

    @abstractmethod
    async def abort(self) -> None:
        """Forgets what was written. Does nothing after `close` or the second time."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is not None:
            await self.abort()
            return
        try:
            await self.close()
        except BaseException:
            await self.abort()
            raise


class Writes(ABC):
    """The writing half of a store."""

    @abstractmethod
    async def put(self, key: str, data: bytes, only_if_absent: bool) -> bool:
        """False: `only_if_absent` and there is one already."""

    @abstractmethod
    async def open(self, key: str) -> ObjectWriter: ...

    @abstractmethod
    async def sweep_unfinished(self, older_than_s: float) -> int:
        """As `ObjectStore.sweep_unfinished`."""


class LocalWrites(Writes):
    """Writes to a folder, on worker threads."""

    def __init__(self, root: Path) -> None:
        self._root = root

    async def put(self, key: str, data: bytes, only_if_absent: bool) -> bool:
        return await asyncio.to_thread(self._put, key, data, only_if_absent)

    def _put(self, key: str, data: bytes, only_if_absent: bool) -> bool:
        try:
            staged = StagedFile(self._root)
            try:
                staged.write(data)
                return staged.publish(key, only_if_absent)
            finally:
                staged.discard()
        except OSError as error:
            raise _local_error(error, self._root, key) from error

    async def open(self, key: str) -> ObjectWriter:
        try:
            return _LocalWriter(self._root, key, await asyncio.to_thread(StagedFile, self._root))
        except OSError as error:
            raise _local_error(error, self._root, key) from error

    async def sweep_unfinished(self, older_than_s: float) -> int:
        try:
            return await asyncio.to_thread(sweep, self._root)
        except OSError as error:
            raise _local_error(error, self._root, "") from error


def _local_error(error: OSError, root: Path, key: str) -> ObjectStoreError:
    if not is_there(root):
        return folder_gone(str(root))
    if isinstance(error, FileExistsError):
        return InvalidKey(key, "another object's key is a folder of it")
    return from_os(error, str(root), key)


class _LocalWriter(ObjectWriter):
    def __init__(self, root: Path, key: str, staged: StagedFile) -> None:
        self._root = root
        self._key = key
        self._staged = staged

    async def write(self, data: bytes) -> None:
        try:
            await asyncio.to_thread(self._staged.write, data)
        except OSError as error:
            raise _local_error(error, self._root, self._key) from error

    async def close(self) -> None:
        try:
            await asyncio.to_thread(self._staged.publish, self._key)
        except OSError as error:
            raise _local_error(error, self._root, self._key) from error

    async def abort(self) -> None:
        await asyncio.to_thread(self._staged.discard)


class RemoteWrites(Writes):
    """Writes through obstore: one request, or a multipart upload visible from its end only."""

    def __init__(self, backend: Backend, where: str, uploads: S3Uploads | None = None) -> None:
        self._backend = backend
        self.where = where
        self._uploads = uploads

    async def put(self, key: str, data: bytes, only_if_absent: bool) -> bool:
        try:
            # A conditional put must be one request.
            await obstore.put_async(
                self._backend,
                key,
                data,
                mode="create" if only_if_absent else "overwrite",
                use_multipart=False if only_if_absent else None,
            )
        except obstore_errors.AlreadyExistsError:
            return False
        except STORE_FAULTS as error:
            raise _remote_error(error, self.where, key) from error
        return True

    async def open(self, key: str) -> ObjectWriter:
        writer = obstore.open_writer_async(self._backend, key, buffer_size=PART_BYTES)
        return _RemoteWriter(writer, self.where, key)

    async def sweep_unfinished(self, older_than_s: float) -> int:
        if self._uploads is None:
            return 0
        return await asyncio.to_thread(self._uploads.sweep, older_than_s)


def _remote_error(error: Exception, where: str, key: str) -> ObjectStoreError:
    mapped = from_obstore(error, where, key)
    if isinstance(mapped, ObjectNotFound):  # Of a write, it is the bucket that was not found.
        return StoreUnavailable(where, "its bucket does not exist")
    return mapped


class _RemoteWriter(ObjectWriter):
    def __init__(self, writer: obstore.AsyncWritableFile, where: str, key: str) -> None:
        self._writer = writer
        self._where = where
        self._key = key
        self._open = True

    async def write(self, data: bytes) -> None:
        try:
            await self._writer.write(data)
        except STORE_FAULTS as error:
            raise _remote_error(error, self._where, self._key) from error

    async def close(self) -> None:
        self._open = False  # obstore has nothing left to abort, whether or not this succeeds
        try:
            await self._writer.close()
        except STORE_FAULTS as error:
            raise _remote_error(error, self._where, self._key) from error

    async def abort(self) -> None:
        if not self._open:
            return
        self._open = False
        # Leaving obstore's context with an exception is its way to abort a multipart upload.
        reason = RuntimeError("aborted")
        try:
            await self._writer.__aexit__(RuntimeError, reason, None)
        except STORE_FAULTS as error:
            raise _remote_error(error, self._where, self._key) from error
