"""The object store as a run needs it: patient where waiting helps, final where it does not."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeVar

from libs.clock import Clock
from libs.errors import DataLoss, InvalidArgument, NotFound
from libs.objects import Digest, ObjectStore, fits
from libs.objects.errors import ObjectStoreError
from services.scheduler.app.writer import LeadershipLost, Leads

log = logging.getLogger(__name__)

RETRY_S = 0.25
MAX_RETRY_S = 10.0
_WRITE_BYTES = 1 << 20
_FINAL = (NotFound, InvalidArgument, DataLoss)

T = TypeVar("T")


class RunBroken(Exception):
    """The run can never go on: an object it needs is gone or damaged. `why` is one sentence for
    the batch's owner; `detail` is for the log and may name objects."""

    def __init__(self, why: str, detail: str = "") -> None:
        super().__init__(f"{why} {detail}".rstrip())
        self.why = why
        self.detail = detail


class RunStorage:
    """Every method tries again, until leadership is over or the store answers; RunBroken when
    what is asked for does not exist. `what` names it there, as the subject of a sentence."""

    def __init__(self, objects: ObjectStore, leadership: Leads, clock: Clock) -> None:
        self._objects = objects
        self._leadership = leadership
        self._clock = clock

    async def get(self, key: str, what: str) -> bytes:
        return await self._patiently(lambda: self._objects.get(key), f"{what} is lost.")

    async def get_whole(self, key: str, size: int, digest: str, what: str) -> bytes:
        """The object of which that was noted. One that differs is read once more, in case that it
        was the way and not the store; RunBroken if it does again."""
        for _ in range(2):
            data = await self.get(key, what)
            if fits(data, size, digest):
                return data
            log.warning("an object is not as it was written", extra={"object": key})
        raise RunBroken(f"{what} is damaged.", f"See '{key}'.")

    async def get_range(self, key: str, start: int, length: int, what: str) -> bytes:
        """Exactly `length` bytes."""
        lost = f"{what} is lost or damaged."
        data = await self._patiently(lambda: self._objects.get_range(key, start, length), lost)
        if len(data) != length:
            raise RunBroken(lost, f"'{key}' is shorter than it was.")
        return data

    async def size(self, key: str, what: str) -> int:
        return (await self._patiently(lambda: self._objects.head(key), f"{what} is lost.")).size

    async def create(self, key: str, data: bytes, what: str) -> bool:
        """Writes an object that is never replaced, so that a copy of this request that comes late
        changes nothing. False if another one is there."""
        return await self._patiently(lambda: self._create(key, data), f"{what} cannot be written.")

    async def _create(self, key: str, data: bytes) -> bool:
        if await self._objects.put_if_absent(key, data):
            return True
        try:
            # It may be ours: the answer to the first try was lost.
            return await self._objects.get(key) == data
        except NotFound:
            return False

    async def write_lines(
        self, key: str, lines: Callable[[], AsyncIterator[bytes]], what: str
    ) -> Digest:
        """The object made of these lines, each with a newline; what is to be noted of it. `lines`
        is called again for another try."""
        refused = f"{what} cannot be written."
        return await self._patiently(lambda: self._write_lines(key, lines), refused)

    async def _write_lines(self, key: str, lines: Callable[[], AsyncIterator[bytes]]) -> Digest:
        digest = Digest()
        buffer = bytearray()
        async with await self._objects.put_stream(key) as writer:
            async for line in lines():
                buffer += line
                buffer += b"\n"
                if len(buffer) >= _WRITE_BYTES:
                    digest.update(buffer)
                    await writer.write(bytes(buffer))
                    buffer.clear()
            digest.update(buffer)
            await writer.write(bytes(buffer))
        return digest

    async def _patiently(self, attempt: Callable[[], Awaitable[T]], broken: str) -> T:
        wait_s = RETRY_S
        while not self._leadership.over:
            try:
                return await attempt()
            except ObjectStoreError as error:
                if isinstance(error, _FINAL):
                    raise RunBroken(broken, error.message) from error
                log.warning("the object store must be asked again", extra={"why": error.message})
            await self._clock.sleep(wait_s)
            wait_s = min(MAX_RETRY_S, 2 * wait_s)
        raise LeadershipLost("leadership ended while the object store was away")
