"""multipart/form-data as a stream: small fields are kept, the file goes on chunk by chunk.

Memory: one network chunk, and `MAX_FIELD_BYTES` of a field.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, NamedTuple

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from services.router.core.errors import BadRequest

if TYPE_CHECKING:
    from python_multipart.multipart import MultipartCallbacks

MAX_FIELD_BYTES = 64 << 10
MAX_PARTS = 32
MAX_HEADER_BYTES = 16 << 10


class FieldPart(NamedTuple):
    name: str
    value: str


class FileStart(NamedTuple):
    name: str
    filename: str


class FileChunk(NamedTuple):
    data: bytes


Event = FieldPart | FileStart | FileChunk


async def parse_multipart(content_type: str, body: AsyncIterator[bytes]) -> AsyncIterator[Event]:
    """The parts in their order. Raises BadRequest where the body is not well-formed."""
    kind, options = parse_options_header(content_type)
    boundary = options.get(b"boundary")
    if kind != b"multipart/form-data" or not boundary:
        raise BadRequest("The upload must be multipart/form-data with a boundary.", "file")
    parts = _Parts()
    try:
        parser = MultipartParser(boundary, parts.callbacks())
        async for chunk in body:
            if chunk:
                parser.write(chunk)
            for event in parts.take():
                yield event
        parser.finalize()
    except FormParserError as error:
        raise BadRequest(f"The multipart body cannot be read: {error}.", "file") from None
    for event in parts.take():
        yield event
    if not parts.ended:
        raise BadRequest("The multipart body ends before its last boundary.", "file")


class _Parts:
    """Collects the parser's callbacks into events."""

    def __init__(self) -> None:
        self.ended = False
        self._events: list[Event] = []
        self._count = 0
        self._header_bytes = 0
        self._name = b""
        self._value = b""
        self._headers: dict[bytes, bytes] = {}
        self._field: bytearray | None = None
        self._field_name = ""

    def callbacks(self) -> MultipartCallbacks:
        return {
            "on_part_begin": self._part_begin,
            "on_header_field": self._header_name,
            "on_header_value": self._header_value,
            "on_header_end": self._header_end,
            "on_headers_finished": self._headers_finished,
            "on_part_data": self._part_data,
            "on_part_end": self._part_end,
            "on_end": self._end,
        }

    def take(self) -> list[Event]:
        events, self._events = self._events, []
        return events

    def _part_begin(self) -> None:
        self._count += 1
        if self._count > MAX_PARTS:
            raise BadRequest(f"The upload has more than {MAX_PARTS} parts.", "file")
        self._headers = {}
        self._header_bytes = 0

    def _header_name(self, data: bytes, start: int, end: int) -> None:
        self._name += self._bounded(data[start:end])

    def _header_value(self, data: bytes, start: int, end: int) -> None:
        self._value += self._bounded(data[start:end])

    def _bounded(self, piece: bytes) -> bytes:
        self._header_bytes += len(piece)
        if self._header_bytes > MAX_HEADER_BYTES:
            raise BadRequest("A part's headers are too long.", "file")
        return piece

    def _header_end(self) -> None:
        self._headers[self._name.lower()] = self._value
        self._name = self._value = b""

    def _headers_finished(self) -> None:
        _, options = parse_options_header(self._headers.get(b"content-disposition", b""))
        name = _text(options.get(b"name", b""))
        if not name:
            raise BadRequest("A part has no name in its Content-Disposition.", "file")
        self._field_name = name
        if b"filename" in options:
            self._field = None
            self._events.append(FileStart(name, _text(options[b"filename"])))
        else:
            self._field = bytearray()

    def _part_data(self, data: bytes, start: int, end: int) -> None:
        if self._field is None:
            self._events.append(FileChunk(data[start:end]))
            return
        self._field += data[start:end]
        if len(self._field) > MAX_FIELD_BYTES:
            raise BadRequest(
                f"The field '{self._field_name[:80]}' is longer than {MAX_FIELD_BYTES} bytes; "
                "a file part needs a filename.",
                self._field_name[:80],
            )

    def _part_end(self) -> None:
        if self._field is not None:
            self._events.append(FieldPart(self._field_name, _text(bytes(self._field))))
            self._field = None

    def _end(self) -> None:
        self.ended = True


def _text(raw: bytes) -> str:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        return raw.decode("latin-1")
