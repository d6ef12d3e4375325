"""Structured logging to stderr.

Code logs through the standard library, with fields as `extra`:

    log = logging.getLogger(__name__)
    log.info("evicted blocks", extra={"blocks": 3, "bytes": 4096})

People get `12:00:01.123 INFO  kvstore evicted blocks blocks=3 bytes=4096`; with `as_json` each line
is one JSON object that also names the service and the member.
"""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any, TextIO

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


def setup_logging(
    service: str,
    member: str = "",
    *,
    as_json: bool = False,
    level: str = "info",
    stream: TextIO | None = None,
) -> None:
    """Send every log record of this process to `stream` (stderr). Calling it again replaces it."""
    formatter = _JsonFormatter(service, member) if as_json else _TextFormatter(service)
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(formatter)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    logging.captureWarnings(True)


def fields_of(record: logging.LogRecord) -> dict[str, Any]:
    """The `extra` fields of a record, in the order they were given."""
    return {key: value for key, value in vars(record).items() if key not in _STANDARD}


class _TextFormatter(logging.Formatter):
    def __init__(self, service: str) -> None:
        super().__init__()
        self._service = service

    def format(self, record: logging.LogRecord) -> str:
        clock = datetime.fromtimestamp(record.created).strftime("%H:%M:%S.%f")[:-3]
        fields = "".join(f" {key}={_shown(value)}" for key, value in fields_of(record).items())
        line = f"{clock} {record.levelname:<7} {self._service} {record.getMessage()}{fields}"
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return line


class _JsonFormatter(logging.Formatter):
    def __init__(self, service: str, member: str) -> None:
        super().__init__()
        self._about = {"service": service} | ({"member": member} if member else {})

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            **self._about,
            "logger": record.name,
            "message": record.getMessage(),
        }
        # A field never hides one of the line's own keys.
        line |= {
            (f"field_{key}" if key in line else key): v for key, v in fields_of(record).items()
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def _shown(value: Any) -> str:
    text = str(value)
    return json.dumps(text) if not text or any(c.isspace() or c == '"' for c in text) else text
