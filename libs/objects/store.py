"""The object store: bytes by key.

Consistency: an object is visible as a whole or not at all, and a finished `put` or `close` is
seen by every later `get`, `head` and `list`. There is no fencing: of two writers of one key the
last wins, unless both use `put_if_absent`, where exactly one does.
"""

from __future__ import annotations

import heapq
import operator
import os
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import obstore
from obstore.store import LocalStore, MemoryStore, from_url
from obstore.store import ObjectStore as Backend

from libs.errors import StartupError
from libs.objects import staging
from libs.objects.errors import (
    STORE_FAULTS,
    BadRange,
    ObjectNotFound,
    ObjectStoreError,
    folder_gone,
    from_obstore,
    from_os,
)
from libs.objects.keys import check_key, check_prefix, is_key
from libs.objects.uploads import uploads_of
from libs.objects.writers import LocalWrites, ObjectWriter, RemoteWrites, Writes

STREAM_CHUNK_BYTES = 1 << 20
ENDPOINT_SETTINGS = ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT")
_LIST_PAGE = 1000
_SLACK = 1000
_CLIENT = {"connect_timeout": timedelta(seconds=5), "timeout": timedelta(seconds=60)}
_RETRY: Any = {"max_retries": 3, "retry_timeout": timedelta(seconds=30)}

__all__ = ["ObjectInfo", "ObjectStore", "ObjectWriter", "open_store"]


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    key: str
    size: int
    """Bytes."""
    etag: str | None
    """Changes when the object does; None where the store has none."""
    modified: datetime
    """With a time zone."""


class ObjectStore:
    """See the module. Every method raises `ObjectStoreError`s only; made by `open_store`."""

    def __init__(
        self,
        url: str,
        backend: Backend,
        writes: Writes,
        sorted_listing: bool,
        endpoint: str = "",
        root: Path | None = None,
    ) -> None:
        self.url = url
        self.endpoint = endpoint
        """Where it is asked, when that is not the usual one of the URL's scheme."""
        self._backend = backend
        self._writes = writes
        self._sorted_listing = sorted_listing
        self._root = root

    async def put(self, key: str, data: bytes) -> None:
        """Writes or replaces the object."""
        await self._writes.put(check_key(key), data, only_if_absent=False)

    async def put_if_absent(self, key: str, data: bytes) -> bool:
        """Writes the object unless there is one; False if there is. At most 5 GB."""
        return await self._writes.put(check_key(key), data, only_if_absent=True)

    async def put_stream(self, key: str) -> ObjectWriter:
        """A writer for an object of any size; memory stays below some 16 MiB."""
        return await self._writes.open(check_key(key))

    async def get(self, key: str) -> bytes:
        """The whole object in memory."""
        try:
            result = await obstore.get_async(self._backend, check_key(key))
            return bytes(await result.bytes_async())
        except STORE_FAULTS as error:
            raise self._error(error, key) from error

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        """Bytes `[start, start + length)`, fewer where the object ends before.

        Raises `BadRange` where `start` is beyond the end.
        """
        if start < 0 or length < 0:
            raise ValueError(f"a range is not negative: start={start} length={length}")
        check_key(key)
        if length == 0:
            await self._check_start(key, start)
            return b""
        try:
            data = await obstore.get_range_async(self._backend, key, start=start, length=length)
            return bytes(data)
        except STORE_FAULTS as error:
            # Stores word "beyond the end" differently; the object's size is certain.
            await self._check_start(key, start, cause=error)
            return b""

    async def stream(self, key: str, start: int = 0) -> AsyncIterator[bytes]:
        """The object's bytes from `start` in chunks of at most 1 MiB."""
        if start < 0:
            raise ValueError(f"a range is not negative: start={start}")
        options: Any = {"range": {"offset": start}} if start else {}
        try:
            result = await obstore.get_async(self._backend, check_key(key), options=options)
        except STORE_FAULTS as error:
            await self._check_start(key, start, cause=error)
            return
        try:
            async for chunk in result.stream(min_chunk_size=STREAM_CHUNK_BYTES):
                # The memory store hands out the whole object as one chunk.
                view = memoryview(chunk)
                for begin in range(0, len(view), STREAM_CHUNK_BYTES):
                    yield bytes(view[begin : begin + STREAM_CHUNK_BYTES])
        except STORE_FAULTS as error:
            raise self._error(error, key) from error

    async def head(self, key: str) -> ObjectInfo:
        try:
            return _info(await obstore.head_async(self._backend, check_key(key)))
        except STORE_FAULTS as error:
            raise self._error(error, key) from error

    async def exists(self, key: str) -> bool:
        try:
            await self.head(key)
        except ObjectNotFound:
            return False
        return True

    async def list(
        self, prefix: str = "", after: str | None = None, limit: int | None = None
    ) -> list[ObjectInfo]:
        """Objects in the folder `prefix` and below, by key; those after the key `after`.

        A page takes memory for `limit` objects; a local folder is walked whole for each page.
        """
        folder = check_prefix(prefix)
        listing = self._listing(folder or None, after)
        page: list[ObjectInfo] = []
        async for info in listing:
            if limit is not None and len(page) >= limit + (0 if self._sorted_listing else _SLACK):
                if self._sorted_listing:
                    break
                page = _first(page, limit)
            page.append(info)
        return _first(page, limit)

    async def delete(self, key: str) -> None:
        """Removes the object; no error where there is none."""
        try:
            await obstore.delete_async(self._backend, check_key(key))
        except STORE_FAULTS as error:
            mapped = self._error(error, key)
            if not isinstance(mapped, ObjectNotFound):
                raise mapped from error

    async def sweep_unfinished(self, older_than_s: float) -> int:
        """Removes what writers that are gone had written and never closed; how many. Of a folder,
        those of dead processes; of S3 with keys of the configuration, multipart uploads begun
        longer ago; of other stores nothing: give the bucket a rule that ends them."""
        return await self._writes.sweep_unfinished(older_than_s)

    async def _listing(self, folder: str | None, after: str | None) -> AsyncIterator[ObjectInfo]:
        try:
            pages = obstore.list(self._backend, folder, offset=after, chunk_size=_LIST_PAGE)
            async for page in pages:
                for meta in page:
                    # What we could not have written (the staging folder, strangers) is not ours.
                    if is_key(meta["path"]):
                        yield _info(meta)
        except STORE_FAULTS as error:
            raise self._error(error, folder or "") from error
        if self._is_gone():
            raise folder_gone(self.url)

    async def _check_start(self, key: str, start: int, cause: Exception | None = None) -> None:
        """Returns only if `start` is the object's end or, without a `cause`, within it."""
        size = (await self.head(key)).size
        if start > size:
            raise BadRange(key, start, size) from cause
        if start < size and cause is not None:
            raise self._error(cause, key) from cause

    def _error(self, error: Exception, key: str) -> ObjectStoreError:
        return folder_gone(self.url) if self._is_gone() else from_obstore(error, self.url, key)

    def _is_gone(self) -> bool:
        """obstore finds no object in a folder that is not there, and none in its listing."""
        return self._root is not None and not staging.is_there(self._root)


def open_store(url: str, options: Mapping[str, str] | None = None) -> ObjectStore:
    """The store at `url`.

    A path or `file:///path`: that folder, created where missing. `memory://`: a new, empty store
    in this process. `s3://bucket/prefix`, `gs://`, `az://`: remote; `options` (obstore's names,
    `endpoint`, `access_key_id`, ...) come before the usual environment variables
    (AWS_ENDPOINT_URL, AWS_ACCESS_KEY_ID, ...). An `http://` endpoint allows plain HTTP.
    """
    parts = urlsplit(url)
    if parts.scheme == "memory":
        backend: Backend = MemoryStore()
        return ObjectStore(url, backend, RemoteWrites(backend, url), sorted_listing=True)
    if parts.scheme in ("", "file"):
        return _open_folder(Path(unquote(parts.path) if parts.scheme else url))
    return _open_remote(url, dict(options or {}))


def _open_folder(path: Path) -> ObjectStore:
    root = path.expanduser().absolute()
    try:
        staging.prepare(root)
    except OSError as error:
        if isinstance(error, FileExistsError | NotADirectoryError):
            raise StartupError(f"The object store {root} is not a folder: name another.") from error
        raise from_os(error, str(root), "") from error
    return ObjectStore(
        root.as_uri(), LocalStore(root), LocalWrites(root), sorted_listing=False, root=root
    )


def _open_remote(url: str, options: dict[str, str]) -> ObjectStore:
    named = (options.get("endpoint"), *(os.environ.get(name) for name in ENDPOINT_SETTINGS))
    endpoint = next((each for each in named if each), "")
    client: Any = dict(_CLIENT)
    if endpoint and not endpoint.startswith(("http://", "https://")):
        raise StartupError(
            f"The endpoint {endpoint} ({ENDPOINT_SETTINGS[0]}) of the object store {url} must "
            "begin with http:// or https://."
        )
    if endpoint.startswith("http://"):
        client["allow_http"] = True
    try:
        config: Any = options
        backend: Backend = from_url(url, config=config, client_options=client, retry_config=_RETRY)
    except STORE_FAULTS as error:
        why = str(error).strip().split("\n", 1)[0]
        raise StartupError(f"The object store URL {url} cannot be used: {why}") from error
    writes = RemoteWrites(backend, url, uploads_of(url, endpoint, options, os.environ))
    return ObjectStore(url, backend, writes, sorted_listing=True, endpoint=endpoint)


def _first(found: list[ObjectInfo], limit: int | None) -> list[ObjectInfo]:
    by_key = operator.attrgetter("key")
    return sorted(found, key=by_key) if limit is None else heapq.nsmallest(limit, found, by_key)


def _info(meta: obstore.ObjectMeta) -> ObjectInfo:
    return ObjectInfo(meta["path"], meta["size"], meta["e_tag"], meta["last_modified"])
