r"""Lines of a batch's output and error files.

    {"id", "custom_id", "response": {"status_code", "request_id", "body"}, "error"}

A 2xx reply goes to the output file, any other to the error file; both have `error: null` and the
reply's own body, a refused request's error included. Where there was no reply at all (expired,
cancelled, the engine lost) `response` is null and `error` tells code and message.

The JSON is ASCII: readers that split text at U+2028, U+2029 or U+0085 would cut a line in two.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

EXPIRED = "batch_expired"
CANCELLED = "batch_cancelled"
ENGINE_LOST = "engine_lost"

# NaN must not slip into a file that others parse.
_ENCODER = json.JSONEncoder(ensure_ascii=True, allow_nan=False, separators=(",", ":"))

NO_REPLY_MESSAGES = {
    EXPIRED: "This request could not be executed before the completion window expired.",
    CANCELLED: "This request was not executed because the batch was cancelled.",
    ENGINE_LOST: "This request could not be executed: its model servers kept failing.",
}


def reply_line(
    line_id: str, custom_id: str, request_id: str, status_code: int, body: Mapping[str, Any]
) -> bytes:
    """The line of a request that got a reply, good or bad; ends in a newline."""
    response = {"status_code": status_code, "request_id": request_id, "body": body}
    return _line(line_id, custom_id, response, None)


def no_reply_line(line_id: str, custom_id: str, code: str, message: str | None = None) -> bytes:
    """The line of a request that got none. `message` is needed for codes of the caller's own."""
    text = message if message is not None else NO_REPLY_MESSAGES[code]
    return _line(line_id, custom_id, None, {"code": code, "message": text})


def is_output(status_code: int) -> bool:
    """Whether the line belongs in the output file; otherwise in the error file."""
    return 200 <= status_code < 300


def _line(
    line_id: str,
    custom_id: str,
    response: Mapping[str, Any] | None,
    error: Mapping[str, Any] | None,
) -> bytes:
    record = {"id": line_id, "custom_id": custom_id, "response": response, "error": error}
    return _ENCODER.encode(record).encode("ascii") + b"\n"
