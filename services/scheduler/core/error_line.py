"""Lines of the error file that no router wrote: the line never got an HTTP answer."""

from __future__ import annotations

import json

EXPIRED = "batch_expired"
CANCELLED = "batch_cancelled"
ENGINE = "engine_error"
RUN_FAILED = "run_failed"

MESSAGES = {
    EXPIRED: "This request could not be executed before the completion window expired.",
    CANCELLED: "This request was not executed because the batch was cancelled.",
    ENGINE: "This request could not be executed.",
    RUN_FAILED: "The run failed, and no answer to this request can be read.",
}


def error_line(run_id: str, line: int, custom_id: str, code: str, detail: str = "") -> bytes:
    """ASCII JSON without a newline. The id depends on run and line only, so that writing the line
    twice gives the same bytes."""
    message = MESSAGES[code]
    if detail:
        message = f"{message.removesuffix('.')}: {detail}"
    record = {
        "id": f"batch_req_{run_id.removeprefix('run-')}_{line}",
        "custom_id": custom_id,
        "response": None,
        "error": {"code": code, "message": message},
    }
    return json.dumps(record, ensure_ascii=True, separators=(",", ":")).encode("ascii")
