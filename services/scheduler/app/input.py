"""A run's input: windows of its index, and the custom_id of single lines."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

import msgspec

from libs.hashing import checksum
from libs.objects import Digest
from libs.records.index import ENTRY_BYTES, unpack_entries
from services.scheduler.app.storage import RunBroken, RunStorage
from services.scheduler.core.line_set import LineSet
from services.scheduler.core.run import Line

WINDOW_LINES = 4096
"""Entries of one range read: 192 KiB."""
_SPAN_BYTES = 1 << 20
_INPUT = "The batch's input file"
_INDEX = "The index of the batch's lines"


class _Named(msgspec.Struct):
    custom_id: str


_named = msgspec.json.Decoder(_Named)


class RunInput:
    def __init__(
        self,
        storage: RunStorage,
        input_object: str,
        index_object: str,
        total: int,
        index_digest: str = "",
    ) -> None:
        """index_digest: of the whole index; empty = it was not noted, and is not compared."""
        self._storage = storage
        self._input = input_object
        self._index = index_object
        self._total = total
        self._digest = index_digest
        self._sums: list[int] | None = None
        """Of each window, once the whole was found to be what was noted: 8 bytes for 4,096
        lines."""

    async def check(self) -> None:
        """RunBroken unless input and index are there and the index has every line."""
        size = await self._storage.size(self._index, _INDEX)
        if size != self._total * ENTRY_BYTES:
            detail = f"'{self._index}' has {size} bytes, not those of {self._total} lines."
            raise RunBroken(f"{_INDEX} is damaged.", detail)
        await self._check_index()
        await self._storage.size(self._input, _INPUT)

    async def window(self, start: int) -> tuple[list[Line], bool]:
        """Up to 4,096 lines from entry `start` (a multiple of that) on, and whether they are the
        last."""
        await self._check_index()
        data = await self._read(start)
        if not self._is_right(start, data):
            data = await self._read(start)  # in case that it was the way and not the store
        if not self._is_right(start, data):
            raise RunBroken(f"{_INDEX} is damaged.", f"See '{self._index}'.")
        lines = [
            Line(entry.line, entry.offset, entry.length, entry.prefix_key)
            for entry in unpack_entries(data)
        ]
        return lines, start + len(lines) >= self._total

    async def _read(self, start: int) -> bytes:
        count = min(WINDOW_LINES, self._total - start)
        return await self._storage.get_range(
            self._index, start * ENTRY_BYTES, count * ENTRY_BYTES, _INDEX
        )

    def _is_right(self, start: int, data: bytes) -> bool:
        return not self._sums or checksum(data) == self._sums[start // WINDOW_LINES]

    async def _check_index(self) -> None:
        """Reads it whole, once, a window after the other: a later window must be the one that was
        part of the right whole. RunBroken if it is not right when read again."""
        if self._sums is not None:
            return
        for _ in range(2 if self._digest else 0):
            digest, sums = Digest(), []
            for start in range(0, self._total, WINDOW_LINES):
                data = await self._read(start)
                digest.update(data)
                sums.append(checksum(data))
            if digest.hex() == self._digest:
                self._sums = sums
                return
        if self._digest:
            raise RunBroken(f"{_INDEX} is damaged.", f"See '{self._index}'.")
        self._sums = []

    async def custom_id(self, line: Line) -> str:
        return _custom_id(
            line, await self._storage.get_range(self._input, line.offset, line.length, _INPUT)
        )

    async def lines_outside(self, *answered: LineSet) -> AsyncIterator[tuple[int, str]]:
        """(line, custom_id) of every line in none of the sets, in file order."""
        start, last = 0, self._total == 0
        while not last:
            window, last = await self.window(start)
            start += len(window)
            missing = [line for line in window if not any(line.line in each for each in answered)]
            for span in _spans(missing):
                first = span[0].offset
                end = span[-1].offset + span[-1].length
                data = await self._storage.get_range(self._input, first, end - first, _INPUT)
                for line in span:
                    at = line.offset - first
                    yield line.line, _custom_id(line, data[at : at + line.length])


def _spans(lines: Sequence[Line]) -> list[list[Line]]:
    """Neighbours that are read together: a MiB at most, or one line."""
    spans: list[list[Line]] = []
    for line in lines:
        if spans and line.offset + line.length - spans[-1][0].offset <= _SPAN_BYTES:
            spans[-1].append(line)
        else:
            spans.append([line])
    return spans


def _custom_id(line: Line, data: bytes) -> str:
    try:
        return _named.decode(data).custom_id
    except msgspec.MsgspecError as error:
        raise RunBroken(f"Line {line.line} of the input file is not what it was.") from error
