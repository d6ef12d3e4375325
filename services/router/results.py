"""Finished lines of a batch as they come: from the run's named segments, then each new one."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator
from typing import NamedTuple

import msgspec

from libs.clock import Clock
from libs.objects import ObjectNotFound, ObjectStore, fits
from libs.records.batch import TERMINAL, SegmentRef
from libs.records.segment import SegmentLine, decode_segment
from services.router.batches import Batches
from services.router.domain_errors import ResultsLost

log = logging.getLogger(__name__)

POLL_S = 0.5


class Line(NamedTuple):
    record: bytes
    """As in the output or error file, without the newline."""
    is_error: bool


class Results:
    def __init__(self, batches: Batches, objects: ObjectStore, clock: Clock) -> None:
        self._batches = batches
        self._objects = objects
        self._clock = clock

    async def lines(
        self, account: str, batch_id: str, *, after: int, follow: bool
    ) -> AsyncGenerator[Line, None]:
        """Lines in the order they were recorded, without the first `after`.

        With `follow` it goes on until the batch has ended. Memory is one segment. Raises
        ResultsLost at a segment that cannot be read.
        """
        skip, seen = after, 0
        while True:
            state = await self._batches.get(account, batch_id)
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
