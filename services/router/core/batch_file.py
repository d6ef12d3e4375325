"""The one reader of batch files: bytes in chunks of any size, lines out.

Every reader of a batch file (upload, validation, execution) goes through this module, so all of
them agree on what a line is:

- lines end at the byte `\n` and nowhere else (never at U+2028, U+2029 or U+0085);
- one UTF-8 byte order mark at the very start is dropped;
- a `\r` before the `\n`, or at the end of the file, is dropped;
- lines of ASCII whitespace are no records, but they are counted: `line` is the physical line;
- a last line without `\n` is a line;
- a line may be as long as the file.

Memory: one line. A line is joined once, however many chunks it came in.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Iterator
from typing import NamedTuple

BOM = codecs.BOM_UTF8


class RawLine(NamedTuple):
    """One record of the file, not yet parsed."""

    line: int
    """Physical line number, from 1."""
    offset: int
    """Byte offset of `data` in the file as stored (a byte order mark counts)."""
    length: int
    """Bytes in `data`; reading `[offset, offset + length)` of the file gives `data` again."""
    data: bytes


class LineSplitter:
    """Splits pushed chunks into lines. `push` them all, then call `finish` once."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._line = 0
        self._start = 0
        self._at_head = True

    def push(self, chunk: bytes) -> Iterator[RawLine]:
        """Yields the records completed by `chunk`. Consume it before the next call."""
        if self._at_head:
            held = self._take_head(chunk)
            if held is None:
                return
            chunk = held
        begin = 0
        while (end := chunk.find(b"\n", begin)) >= 0:
            record = self._close_line(chunk[begin:end], newline=1)
            begin = end + 1
            if record is not None:
                yield record
        if begin < len(chunk):
            self._parts.append(chunk[begin:])

    def finish(self) -> Iterator[RawLine]:
        """Yields the last record where the file does not end in a newline."""
        if self._at_head:
            # Shorter than a byte order mark: what was held is the whole file.
            self._at_head = False
        if self._parts and (record := self._close_line(b"", newline=0)) is not None:
            yield record

    def _take_head(self, chunk: bytes) -> bytes | None:
        """Holds back until it is known whether the file starts with a byte order mark."""
        head = b"".join(self._parts) + chunk
        if len(head) < len(BOM) and BOM.startswith(head):
            self._parts = [head] if head else []
            return None
        self._parts = []
        self._at_head = False
        if head.startswith(BOM):
            self._start = len(BOM)
            return head[len(BOM) :]
        return head

    def _close_line(self, tail: bytes, newline: int) -> RawLine | None:
        self._parts.append(tail)
        raw = b"".join(self._parts)
        self._parts.clear()
        self._line += 1
        offset = self._start
        self._start += len(raw) + newline
        data = raw[:-1] if raw.endswith(b"\r") else raw
        if not data or data.isspace():
            return None
        return RawLine(self._line, offset, len(data), data)


def split_lines(chunks: Iterable[bytes]) -> Iterator[RawLine]:
    """All records of a file given as chunks."""
    splitter = LineSplitter()
    for chunk in chunks:
        yield from splitter.push(chunk)
    yield from splitter.finish()


class NotUtf8(ValueError):
    """The file is not UTF-8 text. `offset` is the byte where that shows."""

    def __init__(self, offset: int, reason: str) -> None:
        super().__init__(
            f"Invalid file for the Batch API: it must be utf-8 encoded ({reason} at byte {offset})."
        )
        self.offset = offset


class Utf8Validator:
    """Checks an upload chunk by chunk; holds at most the three bytes of an open character.

    A NUL byte is refused too: no JSON text has one, and a UTF-16 file of ASCII text would
    otherwise pass as UTF-8.
    """

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("strict")
        self._seen = 0

    def push(self, chunk: bytes) -> None:
        """Raises `NotUtf8` at the first byte that cannot be part of UTF-8 text."""
        self._check(chunk, final=False)

    def finish(self) -> None:
        """Raises `NotUtf8` where the file ends inside a character."""
        self._check(b"", final=True)

    def _check(self, chunk: bytes, final: bool) -> None:
        open_bytes = len(self._decoder.getstate()[0])
        try:
            self._decoder.decode(chunk, final)
        except UnicodeDecodeError as error:
            raise NotUtf8(self._seen - open_bytes + error.start, "an invalid sequence") from None
        nul = chunk.find(b"\0")
        if nul >= 0:
            raise NotUtf8(self._seen + nul, "a NUL byte, as in UTF-16 text,")
        self._seen += len(chunk)
