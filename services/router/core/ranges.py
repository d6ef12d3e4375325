"""Which bytes to read for a set of lines: neighbours in one go."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

MAX_GAP_BYTES = 64 << 10
MAX_RANGE_BYTES = 4 << 20


class LineAt(NamedTuple):
    """A line of the input object; `offset` and `length` in bytes."""

    line: int
    offset: int
    length: int


class Range(NamedTuple):
    start: int
    length: int
    lines: tuple[LineAt, ...]
    """All within the range, by offset."""


def coalesce(lines: Sequence[LineAt]) -> list[Range]:
    """Ranges that cover the lines, by offset.

    Lines closer than `MAX_GAP_BYTES` share one, unless it grew beyond `MAX_RANGE_BYTES`; a longer
    line has a range of its own.
    """
    ranges: list[Range] = []
    for line in sorted(lines, key=lambda each: each.offset):
        end = line.offset + line.length
        last = ranges[-1] if ranges else None
        joins = (
            last is not None
            and line.offset - (last.start + last.length) <= MAX_GAP_BYTES
            and end - last.start <= MAX_RANGE_BYTES
        )
        if last is not None and joins:
            length = max(last.length, end - last.start)
            ranges[-1] = Range(last.start, length, (*last.lines, line))
        else:
            ranges.append(Range(line.offset, line.length, (line,)))
    return ranges
