"""Finished lines of a batch as they come: from the run's named segments, then each new one."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, AsyncIterator
from typing import NamedTuple

import msgspec

from libs.clock import Clock
from libs.objects import ObjectNotFound, ObjectStore, fits
from libs.records.batch import TERMINAL, BatchRecord, SegmentRef
from libs.records.segment import SegmentLine, decode_segment
from services.router.batches import Batches
from services.router.domain_errors import ResultsLost, ResultsReleased
from services.router.files import Files

log = logging.getLogger(__name__)

POLL_S = 0.5


class Line(NamedTuple):
    record: bytes
    """As in the output or error file, without the newline."""
    is_error: bool


class Results:
    def __init__(self, batches: Batches, files: Files, objects: ObjectStore, clock: Clock) -> None:
        self._batches = batches
        self._files = files
        self._objects = objects
        self._clock = clock

    async def lines(
        self, account: str, batch_id: str, *, after: int, follow: bool
    ) -> AsyncGenerator[Line, None]:
        """Lines in the order they were recorded, without the first `after`.

        With `follow` it goes on until the batch has ended. Memory is one segment. Raises
        ResultsLost at a segment that cannot be read. Of a batch that ended so long ago that its
        segments are gone, they come in the order of its files, and only from the first one on:
        ResultsReleased for any other.
        """
        skip, seen = after, 0
        while True:
            state = await self._batches.get(account, batch_id)
            if state.run is not None and state.run.released:
                async for replaced in self._of_files(account, state.record, after):
                    yield replaced
                return
            segments = state.run.segments if state.run else []
            for segment in segments[seen:]:
                seen += 1
                if skip >= segment.lines:
                    skip -= segment.lines
                    continue
                for line in (await self._segment(segment))[skip:]:
                    yield Line(bytes(line.record), line.kind == "error")
                skip = 0
            if not follow or state.record.status in TERMINAL:
                return
            await self._clock.sleep(POLL_S)

    async def _of_files(
        self, account: str, batch: BatchRecord, after: int
    ) -> AsyncGenerator[Line, None]:
        if after:
            raise ResultsReleased(batch.output_file_id, batch.error_file_id)
        for file_id, is_error in ((batch.output_file_id, False), (batch.error_file_id, True)):
            if file_id is not None:
                async for record in _lines_of(await self._files.content(account, file_id)):
                    yield Line(record, is_error)

    async def _segment(self, ref: SegmentRef) -> list[SegmentLine]:
        try:
            return list(decode_segment(await self._whole(ref)))
        except (ObjectNotFound, msgspec.MsgspecError) as error:
            log.error("a segment cannot be read", extra={"object": ref.object, "why": str(error)})
            raise ResultsLost from error

    async def _whole(self, ref: SegmentRef) -> bytes:
        """Its bytes as they were written; read twice, in case that it was the way and not the
        store that changed them."""
        for _ in range(2):
            data = await self._objects.get(ref.object)
            if fits(data, ref.bytes, ref.digest):
                return data
        log.error("a segment is damaged", extra={"object": ref.object})
        raise ResultsLost


async def _lines_of(chunks: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
    """Without their newlines; memory is a chunk and a line."""
    rest = b""
    async for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            yield line
    if rest:
        yield rest
