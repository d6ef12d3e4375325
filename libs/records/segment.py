"""A segment: outcomes of lines as JSON lines, appended by the leader in the order they came.

The record of a line is kept as raw bytes from the router to the output file: what was checked
once is never parsed and printed again.
"""

from collections.abc import Iterable, Iterator

import msgspec


class SegmentLine(msgspec.Struct, kw_only=True, omit_defaults=True):
    line: int
    kind: str
    """"output" or "error"."""
    record: msgspec.Raw
    """The line of the output or error file: ASCII JSON without a newline."""
    trace: str = ""
    """The trace it named, so that a new leader counts the trace's task once."""
    began_s: float = 0.0
    """When the step of an output began, Unix seconds; only beside a trace, whose task lasts from
    its first step's beginning to its last one's end."""
    ended_s: float = 0.0


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(SegmentLine)


def encode_line(
    line: int,
    kind: str,
    record: bytes,
    trace: str = "",
    began_s: float = 0.0,
    ended_s: float = 0.0,
) -> bytes:
    entry = SegmentLine(
        line=line,
        kind=kind,
        record=msgspec.Raw(record),
        trace=trace,
        began_s=began_s,
        ended_s=ended_s,
    )
    return _encoder.encode(entry) + b"\n"


def encode_segment(lines: Iterable[tuple[int, str, bytes]]) -> bytes:
    return b"".join(encode_line(*line) for line in lines)


def decode_segment(data: bytes) -> Iterator[SegmentLine]:
    """Raises msgspec.DecodeError on a damaged segment: nothing of it may be trusted."""
    for raw in data.split(b"\n"):
        if raw:
            yield _decoder.decode(raw)
