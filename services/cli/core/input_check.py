"""What an input file asks for, read before anything is started for it.

Only what decides what to start: which models and which endpoints its lines name. Everything else,
a line that is no JSON too, is the router's to judge: it names every fault with its line.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import orjson

BOM = b"\xef\xbb\xbf"
ENDPOINTS = ("/v1/chat/completions", "/v1/completions")
"""What batches are for, as a line's `url` has it; the first where no line says."""


@dataclass(slots=True)
class InputSummary:
    """lines: that are not blank; requests: those of them that are JSON objects.
    models, endpoints: what lines name, with the first physical line (from 1) that does.
    unnamed: the first line whose body names no model; 0 = there is none."""

    lines: int = 0
    requests: int = 0
    unnamed: int = 0
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
        request = _request(line)
        if request is None:
            continue
        summary.requests += 1
        _note(summary.endpoints, request.get("url"), number)
        body = request.get("body")
        if _lacks_model(body):
            summary.unnamed = summary.unnamed or number
        elif isinstance(body, dict):
            _note(summary.models, body["model"], number)
    return summary


def hopeless(summary: InputSummary) -> str:
    """Why no line of the file can be answered, as the rest of a sentence about it; empty if some
    may be."""
    if not summary.lines:
        return "holds no requests"
    if not summary.requests:
        return "is no batch file: none of its lines is a JSON object"
    return ""


def foreign_endpoint(summary: InputSummary) -> str:
    """Why the batch cannot be for the endpoint that its first line names, as a sentence without its
    full stop; empty if it can, or if no line names one."""
    for url, number in summary.endpoints.items():
        if url in ENDPOINTS:
            return ""
        return f"Line {number} has the 'url' {url!r}, which must be one of {', '.join(ENDPOINTS)}"
    return ""


def renamed(lines: Iterable[bytes], model: str) -> Iterator[bytes]:
    """The same lines, with `model` in each body that names none or another; all others byte for
    byte."""
    for number, raw in enumerate(lines, 1):
        request = _request(raw.removeprefix(BOM) if number == 1 else raw)
        if request is not None and _differs(request.get("body"), model):
            request["body"]["model"] = model
            yield orjson.dumps(request) + (b"\n" if raw.endswith(b"\n") else b"")
        else:
            yield raw


def _request(line: bytes) -> dict[str, Any] | None:
    try:
        request = orjson.loads(line)
    except orjson.JSONDecodeError:
        return None
    return request if isinstance(request, dict) else None


def _lacks_model(body: object) -> bool:
    return isinstance(body, dict) and body.get("model") is None


def _differs(body: object, model: str) -> bool:
    """A model that is no text is the router's to judge."""
    if not isinstance(body, dict):
        return False
    named = body.get("model")
    return named is None or (isinstance(named, str) and named != model)


def _note(seen: dict[str, int], value: object, number: int) -> None:
    if isinstance(value, str):
        seen.setdefault(value, number)
