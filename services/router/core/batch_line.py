"""What a line of a batch file must be, decided once for validator and executor.

`parse_line` is the only parser of lines: the validator runs it over the whole file before
anything executes, and the executor runs it again on the bytes of one line, so they cannot
disagree (of equal keys in an object the last one wins, in both). A line is refused only for what
makes the *file* wrong; a bad field of one request (`temperature` 99, a prompt too long) becomes
that request's own error line when it runs.

JSON is strict: no NaN or Infinity, no number beyond a double (1e999), no trailing comma, no lone
surrogate, no nesting deeper than 1,024.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Any

import orjson

from services.router.core.batch_file import RawLine

INVALID_JSON = "invalid_json_line"
DUPLICATE_ID = "duplicate_custom_id"
INVALID_ID = "invalid_custom_id"
URL_MISMATCH = "url_mismatch"
MODEL_MISMATCH = "model_mismatch"
MODEL_NOT_FOUND = "model_not_found"
MISSING = "missing_required_parameter"
INVALID_REQUEST = "invalid_request"
EMPTY_FILE = "empty_file"
TOO_MANY = "too_many_tasks"
FILE_TOO_LARGE = "file_too_large"

_ID_DIGEST_BYTES = 16
_SHOWN_CHARS = 80


@dataclass(frozen=True, slots=True)
class LineError:
    """One entry of a batch object's `errors.data`. `line` is null for the file as a whole."""

    code: str
    line: int | None
    message: str
    param: str | None = None

    def to_dict(self) -> dict[str, Any]:
        return {
            "code": self.code,
            "line": self.line,
            "message": self.message,
            "param": self.param,
        }


@dataclass(frozen=True, slots=True)
class LineRules:
    """What the lines of one batch must agree with."""

    endpoint: str
    """The batch's endpoint, `/v1/chat/completions`."""
    model: str | None
    """The job's model; None lets the file's first line choose, and the rest must agree."""
    known_models: frozenset[str]
    """Models the account may use."""


@dataclass(frozen=True, slots=True)
class BatchLine:
    """A line that may run."""

    custom_id: str
    method: str
    url: str
    model: str
    body: dict[str, Any]
    line: int
    offset: int
    length: int


@dataclass(frozen=True, slots=True)
class FileLimits:
    max_lines: int = 50_000
    max_bytes: int = 200_000_000
    max_errors: int = 100
    """Errors reported; further ones are counted only."""


@dataclass(frozen=True, slots=True)
class FileReport:
    """The outcome of validating a file. It may run if `ok`."""

    lines: int
    """Records seen (blank lines are none)."""
    bytes: int
    model: str | None
    """The model of all lines; None where no line was valid."""
    error_count: int
    errors: tuple[LineError, ...]

    @property
    def ok(self) -> bool:
        return self.error_count == 0


def parse_line(raw: RawLine, rules: LineRules) -> BatchLine | LineError:
    """The line as a request, or the first thing wrong with it. Knows nothing of other lines."""
    try:
        record = orjson.loads(raw.data)
    except orjson.JSONDecodeError as error:
        message = f"This line is not parseable as valid JSON ({error.msg}, column {error.colno})."
        return LineError(INVALID_JSON, raw.line, message)
    if not isinstance(record, dict):
        return LineError(INVALID_JSON, raw.line, "This line is not a JSON object.")
    fault = _record_fault(record, rules) or _body_fault(record["body"], rules)
    if fault is not None:
        code, param, message = fault
        return LineError(code, raw.line, message, param)
    body = record["body"]
    return BatchLine(
        custom_id=record["custom_id"],
        method=record["method"],
        url=record["url"],
        model=body["model"],
        body=body,
        line=raw.line,
        offset=raw.offset,
        length=raw.length,
    )


_Fault = tuple[str, str, str]


def _record_fault(record: dict[str, Any], rules: LineRules) -> _Fault | None:
    for name in ("custom_id", "method", "url", "body"):
        if record.get(name) is None:
            return MISSING, name, f"Missing required parameter: '{name}'."
    custom_id = record["custom_id"]
    if not isinstance(custom_id, str) or not custom_id:
        return INVALID_ID, "custom_id", "'custom_id' must be a non-empty string."
    if record["method"] != "POST":
        return INVALID_REQUEST, "method", "'method' must be \"POST\"."
    url = record["url"]
    if url != rules.endpoint:
        message = f"'url' must be the batch's endpoint '{rules.endpoint}', not {_shown(url)}."
        return URL_MISMATCH, "url", message
    if not isinstance(record["body"], dict):
        return INVALID_REQUEST, "body", "'body' must be a JSON object."
    return None


def _body_fault(body: dict[str, Any], rules: LineRules) -> _Fault | None:
    model = body.get("model")
    if model is None:
        return MISSING, "body.model", "Missing required parameter: 'body.model'."
    if not isinstance(model, str):
        return INVALID_REQUEST, "body.model", "'body.model' must be a string."
    if model not in rules.known_models:
        return MODEL_NOT_FOUND, "body.model", f"The model {_shown(model)} does not exist."
    if rules.model is not None and model != rules.model:
        message = f"The model {_shown(model)} differs from the batch's model '{rules.model}'."
        return MODEL_MISMATCH, "body.model", message
    if body.get("stream") is True:
        return INVALID_REQUEST, "body.stream", "'stream' must not be true in a batch."
    return None


def _shown(value: object) -> str:
    text = value if isinstance(value, str) else str(type(value).__name__)
    return repr(text if len(text) <= _SHOWN_CHARS else text[:_SHOWN_CHARS] + "...")


@dataclass(slots=True)
class FileValidator:
    """Validates a stream of lines. Holds a 16-byte digest per custom_id and the first errors."""

    rules: LineRules
    limits: FileLimits = field(default_factory=FileLimits)
    _lines: int = 0
    _bytes: int = 0
    _error_count: int = 0
    _errors: list[LineError] = field(default_factory=list)
    _ids: set[bytes] = field(default_factory=set)
    _full: bool = False

    @property
    def full(self) -> bool:
        """No later line can change the outcome's kind; the caller may stop reading."""
        return self._full

    def push(self, raw: RawLine) -> BatchLine | None:
        """Takes the next line in file order; returns it if it is good so far."""
        if self._full:
            return None
        self._lines += 1
        if self._over_limits(raw):
            return None
        outcome = parse_line(raw, self.rules)
        if isinstance(outcome, BatchLine):
            outcome = self._first_of_its_id(outcome)
        if isinstance(outcome, LineError):
            self._refuse(outcome)
            return None
        if self.rules.model is None:
            self.rules = LineRules(self.rules.endpoint, outcome.model, self.rules.known_models)
        return outcome

    def finish(self, file_bytes: int | None = None) -> FileReport:
        """The report, once all lines were pushed. `file_bytes`: the file's size, if known."""
        size = self._bytes if file_bytes is None else file_bytes
        if not self._full and size > self.limits.max_bytes:
            self._refuse(_too_large(self.limits))
        if self._lines == 0:
            self._refuse(LineError(EMPTY_FILE, None, "The file holds no requests."))
        model = self.rules.model if self._ids else None
        return FileReport(self._lines, size, model, self._error_count, tuple(self._errors))

    def _over_limits(self, raw: RawLine) -> bool:
        self._bytes = raw.offset + raw.length
        if self._lines > self.limits.max_lines:
            message = f"The file holds more than {self.limits.max_lines} requests."
            self._refuse(LineError(TOO_MANY, raw.line, message))
            self._full = True
        elif self._bytes > self.limits.max_bytes:
            self._refuse(_too_large(self.limits))
            self._full = True
        return self._full

    def _first_of_its_id(self, line: BatchLine) -> BatchLine | LineError:
        raw_id = line.custom_id.encode()
        digest = hashlib.blake2b(raw_id, digest_size=_ID_DIGEST_BYTES).digest()
        if digest in self._ids:
            message = f"The custom_id {_shown(line.custom_id)} is used by an earlier line."
            return LineError(DUPLICATE_ID, line.line, message, "custom_id")
        self._ids.add(digest)
        return line

    def _refuse(self, error: LineError) -> None:
        self._error_count += 1
        # The error that ends the reading is always told, if need be in place of the last one.
        if len(self._errors) < self.limits.max_errors:
            self._errors.append(error)
        elif error.code in (TOO_MANY, FILE_TOO_LARGE):
            self._errors[-1] = error


def _too_large(limits: FileLimits) -> LineError:
    return LineError(FILE_TOO_LARGE, None, f"The file is larger than {limits.max_bytes} bytes.")
