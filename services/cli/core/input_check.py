"""What an input file asks for, read before anything is started for it.

Only what decides what to start: which models and which endpoints its lines name. Everything else,
a line that is no JSON too, is the router's to judge: it names every fault with its line.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import orjson

BOM = b"\xef\xbb\xbf"


@dataclass(slots=True)
class InputSummary:
    """models, endpoints: what lines name, with the first physical line (from 1) that does."""

    lines: int = 0
    models: dict[str, int] = field(default_factory=dict)
    endpoints: dict[str, int] = field(default_factory=dict)


def summarize(lines: Iterable[bytes]) -> InputSummary:
    """lines: of the file in order, with or without their newline."""
    summary = InputSummary()
    for number, raw in enumerate(lines, 1):
        line = raw.removeprefix(BOM) if number == 1 else raw
        if not line.strip():
            continue
        summary.lines += 1
        try:
            request = orjson.loads(line)
        except orjson.JSONDecodeError:
            continue
        if not isinstance(request, dict):
            continue
        _note(summary.endpoints, request.get("url"), number)
        body = request.get("body")
        _note(summary.models, body.get("model") if isinstance(body, dict) else None, number)
    return summary


def _note(seen: dict[str, int], value: object, number: int) -> None:
    if isinstance(value, str):
        seen.setdefault(value, number)
