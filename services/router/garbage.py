"""Objects that no record names are deleted, and recorded results long after their files are there.

Any number of routers may do so at once. An object goes only after it was seen without a name for
`grace_s` of this process's own monotonic time, and had none when it was looked for again just
before: a writer that is about to name it has all that time, and no clock that jumps shortens it.

The store and etcd must belong together: an etcd that lost its data, or another cluster's, names
nothing here, and everything would look like garbage. Each has the same mark; where the marks
differ, nothing is deleted.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterable, Sequence
from datetime import datetime
from typing import TypeVar

import msgspec

from libs.cluster.client import EtcdClient
from libs.cluster.errors import ClusterError
from libs.cluster.keys import election_leader
from libs.cluster.ops import Compare, Put
from libs.objects import ObjectInfo, ObjectStore, ObjectStoreError
from libs.records import keys
from libs.records.batch import RunRecord
from libs.records.store_mark import Belonging, compare_marks
from services.router.core.garbage import (
    FileContent,
    Index,
    Kind,
    Probe,
    RunNames,
    Segment,
    is_needed,
    kind_of,
)
from services.router.identity import Maker
from services.router.records import decode, encode, load

log = logging.getLogger(__name__)

PAGE = 10_000
"""Objects looked at together. A local folder is walked whole for each page."""
UPLOAD_S = 86_400.0
"""Longer than any upload takes that is still being written."""
_RECORDS = 200
_VALIDATING = "validating"


class _RunHead(msgspec.Struct):
    """The part of a RunRecord that is asked of many."""

    ended_at: int | None = None
    output_file_id: str = ""
    error_file_id: str = ""


class _BatchHead(msgspec.Struct):
    run_id: str
    status: str


_Head = TypeVar("_Head", _RunHead, _BatchHead)


class Garbage:
    def __init__(
        self,
        client: EtcdClient,
        objects: ObjectStore,
        maker: Maker,
        *,
        every_s: float,
        grace_s: float,
        keep_results_s: float,
        page: int = PAGE,
    ) -> None:
        """grace_s: 0 = nothing is ever deleted. keep_results_s: how long the segments of an ended
        run are kept beside its files."""
        self._client = client
        self._objects = objects
        self._maker = maker
        self._every_s = every_s
        self._grace_s = grace_s
        self._keep_results_s = keep_results_s
        self._page = page
        self._unnamed_since: dict[tuple[str, datetime], float] = {}
        """(key, when it was written) -> monotonic time of the first look without a name."""

    async def run(self) -> None:
        """Never returns. What a sweep could not reach is left to the next one."""
        while self._grace_s:
            try:
                if swept := await self.sweep():
                    log.info("objects without a name deleted", extra={"objects": swept})
            except (ClusterError, ObjectStoreError) as error:
                log.warning("garbage is not all deleted", extra={"why": str(error)})
            await self._maker.clock.sleep(self._every_s)

    async def sweep(self) -> int:
        """Looks at every object once; how many it deleted."""
        if not await self._belong_together():
            return 0
        await self._objects.sweep_unfinished(max(self._grace_s, UPLOAD_S))
        unnamed: list[ObjectInfo] = []
        async for page in self._pages():
            unnamed += await self._unnamed(page)
        due = self._due(unnamed)
        return await self._delete(due) if due else 0

    async def _belong_together(self) -> bool:
        belonging = await compare_marks(self._client, self._objects, self._maker.token)
        if belonging is Belonging.TOGETHER:
            return True
        log.error(
            "nothing is deleted from the object store: it belongs to another cluster's state, or "
            "etcd lost its data",
            extra={"object": keys.STORE_MARK_OBJECT, "key": keys.STORE_MARK},
        )
        return False

    # What has no name

    async def _pages(self) -> AsyncIterator[list[ObjectInfo]]:
        after: str | None = None
        while page := await self._objects.list(after=after, limit=self._page):
            yield page
            after = page[-1].key

    async def _unnamed(self, page: Sequence[ObjectInfo]) -> list[ObjectInfo]:
        files = await self._file_objects(info.key for info in page)
        names = _RunsOfSweep(self)
        unnamed = []
        for info in page:
            kind = kind_of(info.key)
            if kind is None:
                continue
            if isinstance(kind, FileContent):
                needed = info.key in files
            else:
                needed = await names.needs(info.key, kind)
            if not needed:
                unnamed.append(info)
        return unnamed

    async def _file_objects(self, objects: Iterable[str]) -> set[str]:
        """Those of the keys, which are in order, that are the content of a file with a record."""
        contents = [key for key in objects if key.startswith("files/")]
        named: set[str] = set()
        if not contents:
            return named
        # A key's beginning comes right before it.
        cursor, last = keys.ROOT + contents[0][:-1], keys.ROOT + contents[-1]
        more = True
        while more and cursor < last:
            listing = await self._client.list(keys.FILES, limit=_RECORDS, after=cursor)
            named.update(entry.key.removeprefix(keys.ROOT) for entry in listing.entries)
            more = listing.more
            cursor = listing.entries[-1].key if listing.entries else last
        return named

    def _due(self, unnamed: Sequence[ObjectInfo]) -> list[ObjectInfo]:
        """Those that have been without a name for long enough."""
        now, before = self._maker.clock.now(), self._unnamed_since
        self._unnamed_since = {
            (info.key, info.modified): before.get((info.key, info.modified), now)
            for info in unnamed
        }
        return [
            info
            for info in unnamed
            if now - self._unnamed_since[info.key, info.modified] >= self._grace_s
        ]

    # Deleting

    async def _delete(self, due: Sequence[ObjectInfo]) -> int:
        # In this order: a batch stops to be validating when its run's record comes, and a run ends
        # when its files' records come; each is one transaction.
        validating = await self._validating_runs()
        of_runs = await self._files_of_runs()
        names = _RunsOfSweep(self)
        deleted = 0
        for info in due:
            kind = kind_of(info.key)
            assert kind is not None, "only what is known is due"
            if not await self._is_needed(info.key, kind, names, validating, of_runs):
                await self._objects.delete(info.key)
                deleted += 1
        return deleted

    async def _is_needed(
        self,
        key: str,
        kind: Kind,
        names: _RunsOfSweep,
        validating: set[str],
        of_runs: set[str],
    ) -> bool:
        if isinstance(kind, FileContent):
            if kind.file_id in of_runs:
                return True
            return await self._client.get(keys.file(kind.account, kind.file_id)) is not None
        if isinstance(kind, Index) and kind.run_id in validating:
            return True
        return await names.needs(key, kind)

    async def _validating_runs(self) -> set[str]:
        found = set()
        async for batch in self._all(keys.BATCHES, _BatchHead):
            if batch.status == _VALIDATING:
                found.add(batch.run_id)
        return found

    async def _files_of_runs(self) -> set[str]:
        """Ids of the files that runs will have at their end."""
        found = set()
        async for run in self._all(keys.RUNS, _RunHead):
            if run.ended_at is None:
                found |= {run.output_file_id, run.error_file_id} - {""}
        return found

    async def _all(self, prefix: str, kind: type[_Head]) -> AsyncIterator[_Head]:
        cursor, more = "", True
        while more:
            listing = await self._client.list(prefix, limit=_RECORDS, after=cursor)
            for entry in listing.entries:
                yield decode(entry, kind)
            more = listing.more
            cursor = listing.entries[-1].key if listing.entries else ""

    # Runs

    async def names_of(self, run_id: str) -> tuple[RunNames | None, int]:
        """What the run's record names now, and the epoch of its fleet's leader (0 = nobody leads).
        A run that ended long ago lets go of its segments first."""
        stored = await load(self._client, keys.run(run_id), RunRecord)
        if stored is None:
            return None, 0
        record = stored.record
        if record.ended_at is not None:
            old = self._maker.unix_s() - record.ended_at >= self._keep_results_s
            if old and record.segments:
                record = await self._release(record, stored.mod_revision)
            return RunNames(True, frozenset(ref.object for ref in record.segments)), 0
        election = election_leader(keys.fleet_election(record.fleet))
        leader = await self._client.get(election)
        epoch = 0 if leader is None else leader.create_revision
        # The leader first, then the record again: one that led then has named what it named.
        again = await load(self._client, keys.run(run_id), RunRecord)
        record = record if again is None else again.record
        segments = frozenset(ref.object for ref in record.segments)
        return RunNames(record.ended_at is not None, segments), epoch

    async def _release(self, record: RunRecord, mod_revision: int) -> RunRecord:
        key = keys.run(record.id)
        released = msgspec.structs.replace(record, segments=[], released=True)
        unchanged = Compare.mod(key) == mod_revision
        done = await self._client.txn([unchanged], [Put(key, encode(released))])
        return released if done.succeeded else record


class _RunsOfSweep:
    """Each run's record once for its neighbouring objects."""

    def __init__(self, garbage: Garbage) -> None:
        self._garbage = garbage
        self._run_id = ""
        self._names: tuple[RunNames | None, int] = (None, 0)

    async def needs(self, key: str, kind: Index | Segment | Probe) -> bool:
        if isinstance(kind, Probe):
            return False
        if kind.run_id != self._run_id:
            self._names = await self._garbage.names_of(kind.run_id)
            self._run_id = kind.run_id
        return is_needed(key, kind, *self._names)
