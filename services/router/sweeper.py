"""Expired files are deleted, content and all; until then they are only no longer shown.

Any number of routers may sweep at once. The record goes first, compared with what was read, so one
of them wins it and alone deletes the content; a batch that is created meanwhile touches the record
and wins too. A router that dies in between leaves content without a name: garbage, never a file
without content.
"""

from __future__ import annotations

import logging

from libs.cluster.client import EtcdClient
from libs.cluster.entry import Entry
from libs.cluster.errors import ClusterError, OutcomeUnknown, RecordUnreadable
from libs.cluster.ops import Compare, Delete
from libs.objects import ObjectStore, ObjectStoreError
from libs.records import keys
from libs.records.batch import FileRecord
from services.router.files import has_expired
from services.router.identity import Maker
from services.router.records import decode

log = logging.getLogger(__name__)

PAGE = 500
"""Records read at a time."""


class Sweeper:
    def __init__(
        self,
        client: EtcdClient,
        objects: ObjectStore,
        maker: Maker,
        *,
        every_s: float,
        page: int = PAGE,
    ) -> None:
        self._client = client
        self._objects = objects
        self._maker = maker
        self._every_s = every_s
        self._page = page

    async def run(self) -> None:
        """Never returns. What a sweep could not reach is left to the next one."""
        while True:
            try:
                if swept := await self.sweep():
                    log.info("expired files deleted", extra={"files": swept})
            except (ClusterError, ObjectStoreError) as error:
                log.warning("expired files are not all deleted", extra={"why": str(error)})
            await self._maker.clock.sleep(self._every_s)

    async def sweep(self) -> int:
        """Deletes what has expired by now and no live batch refers to; how many this call did."""
        swept, cursor, more = 0, "", True
        while more:
            page = await self._client.list(keys.FILES, limit=self._page, after=cursor)
            for entry in page.entries:
                record = self._expired(entry)
                if record is not None and await self._delete(record, entry):
                    swept += 1
            more = page.more
            cursor = page.entries[-1].key if page.entries else ""
        return swept

    def _expired(self, entry: Entry) -> FileRecord | None:
        try:
            record = decode(entry, FileRecord)
        except RecordUnreadable as error:
            log.warning("a file's record is unreadable", extra={"why": str(error)})
            return None
        return record if has_expired(record, self._maker) else None

    async def _delete(self, record: FileRecord, entry: Entry) -> bool:
        if (await self._client.list(keys.refs_of_file(record.id), limit=1)).entries:
            return False
        unchanged = Compare.mod(entry.key) == entry.mod_revision
        try:
            if not (await self._client.txn([unchanged], [Delete(entry.key)])).succeeded:
                return False
        except OutcomeUnknown:
            # Ids are never used again: once the record is gone, so may be its content.
            if await self._client.get(entry.key) is not None:
                return False
        await self._objects.delete(keys.file_object(record.account, record.id))
        return True
