"""Validation of batch files, line by line and as a whole."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import orjson
import pytest

from services.router.core.batch_file import NotUtf8, RawLine, Utf8Validator, split_lines
from services.router.core.batch_line import (
    BatchLine,
    FileLimits,
    FileReport,
    FileValidator,
    LineError,
    LineRules,
    parse_line,
)

CASES = Path(__file__).resolve().parents[4] / "tests" / "data" / "nasty_jsonl"
EXPECTED: dict[str, dict[str, Any]] = json.loads((CASES / "expected.json").read_text())
ENDPOINT = "/v1/chat/completions"
RULES = LineRules(ENDPOINT, "test-model", frozenset({"test-model", "other-model"}))


def record(**changes: Any) -> dict[str, Any]:
    body = {"model": "test-model", "messages": [{"role": "user", "content": "hi"}]}
    return {"custom_id": "r1", "method": "POST", "url": ENDPOINT, "body": body} | changes


def raw(data: bytes | dict[str, Any], line: int = 1) -> RawLine:
    data = orjson.dumps(data) if isinstance(data, dict) else data
    return RawLine(line, 0, len(data), data)


def refused(data: bytes | dict[str, Any], rules: LineRules = RULES) -> LineError:
    outcome = parse_line(raw(data), rules)
    assert isinstance(outcome, LineError)
    return outcome


def validate(
    data: bytes, rules: LineRules = RULES, limits: FileLimits | None = None
) -> tuple[FileReport, list[BatchLine]]:
    validator = FileValidator(rules, limits or FileLimits())
    good = [line for line in map(validator.push, split_lines([data])) if line is not None]
    return validator.finish(len(data)), good


def file_of(*records: dict[str, Any]) -> bytes:
    return b"\n".join(map(orjson.dumps, records))


def accepted_at_upload(data: bytes) -> str | None:
    validator = Utf8Validator()
    try:
        validator.push(data)
        validator.finish()
    except NotUtf8 as error:
        return str(error)
    return None


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_nasty_file(name: str) -> None:
    expect = EXPECTED[name]["expect"]
    data = (CASES / name).read_bytes()
    assert len(data) == EXPECTED[name]["bytes"]
    refusal = accepted_at_upload(data) if data else "The file is empty."
    if expect.get("upload") == 400:
        assert refusal is not None
        assert expect["message_has"] in refusal
        return
    assert refusal is None
    report, good = validate(data)
    if expect.get("batch") == "failed":
        told = [(error.code, error.line) for error in report.errors]
        assert told[0] == (expect["errors"][0]["code"], expect["errors"][0]["line"])
        assert not report.ok
    else:
        assert report.ok
        assert report.lines == len(good) == expect.get("total", report.lines)


@pytest.mark.parametrize(
    ("name", "code", "lines"),
    [
        ("09_nonstring_custom_id.jsonl", "invalid_custom_id", [1, 2, 3, 4]),
        ("21_missing_body_method_url.jsonl", "missing_required_parameter", [1, 2, 3]),
        ("23_nan_infinity.jsonl", "invalid_json_line", [1, 2]),
    ],
)
def test_every_bad_line_of_a_file_is_told(name: str, code: str, lines: list[int]) -> None:
    report, _ = validate((CASES / name).read_bytes())
    assert [(error.code, error.line) for error in report.errors] == [(code, n) for n in lines]


def test_of_equal_keys_the_last_one_wins_in_validator_and_executor() -> None:
    data = (CASES / "26_duplicate_keys.jsonl").read_bytes()
    _, (validated,) = validate(data)
    span = data[validated.offset : validated.offset + validated.length]
    executed = parse_line(RawLine(1, validated.offset, validated.length, span), RULES)
    assert executed == validated
    assert validated.custom_id == "other"


def test_odd_custom_ids_come_back_unchanged() -> None:
    data = (CASES / "28_odd_custom_ids.jsonl").read_bytes()
    _, good = validate(data)
    assert [line.custom_id for line in good] == [
        json.loads(line)["custom_id"] for line in data.split(b"\n") if line
    ]


def test_line_numbers_are_physical_after_blank_lines() -> None:
    report, _ = validate(file_of(record()) + b"\n\n \n{oops\n")
    assert [error.line for error in report.errors] == [4]


@pytest.mark.parametrize(
    ("change", "code", "param"),
    [
        ({"custom_id": None}, "missing_required_parameter", "custom_id"),
        ({"custom_id": ""}, "invalid_custom_id", "custom_id"),
        ({"method": "GET"}, "invalid_request", "method"),
        ({"url": 7}, "url_mismatch", "url"),
        ({"url": ENDPOINT + "/"}, "url_mismatch", "url"),
        ({"url": "https://api.openai.com" + ENDPOINT}, "url_mismatch", "url"),
        ({"body": []}, "invalid_request", "body"),
        ({"body": {}}, "missing_required_parameter", "body.model"),
        ({"body": {"model": 3}}, "invalid_request", "body.model"),
        ({"body": {"model": "nope"}}, "model_not_found", "body.model"),
        ({"body": {"model": "other-model"}}, "model_mismatch", "body.model"),
        ({"body": {"model": "test-model", "stream": True}}, "invalid_request", "body.stream"),
    ],
)
def test_a_wrong_field_is_named(change: dict[str, Any], code: str, param: str) -> None:
    error = refused(record(**change))
    assert (error.code, error.param, error.line) == (code, param, 1)
    assert set(error.to_dict()) == {"code", "line", "message", "param"}


@pytest.mark.parametrize("data", [b"[]", b"1", b"null", b'"x"'])
def test_a_line_that_is_json_but_no_object_is_refused(data: bytes) -> None:
    assert refused(data).code == "invalid_json_line"


def test_a_lone_surrogate_is_refused_not_mangled() -> None:
    assert refused(b'{"custom_id": "\\ud800"}').code == "invalid_json_line"


def test_a_bad_field_of_one_request_does_not_fail_the_file() -> None:
    body = {"model": "test-model", "messages": "no", "temperature": 99, "max_tokens": "x"}
    assert isinstance(parse_line(raw(record(body=body)), RULES), BatchLine)


def test_a_huge_wrong_value_is_not_echoed_whole() -> None:
    error = refused(record(url="/" + "x" * 100_000))
    assert len(error.message) < 300


def test_without_a_job_the_first_line_chooses_the_model() -> None:
    rules = LineRules(ENDPOINT, None, RULES.known_models)
    other = record(custom_id="r2", body={"model": "other-model"})
    report, _ = validate(file_of(record(), other), rules)
    assert report.model == "test-model"
    assert [(error.code, error.line) for error in report.errors] == [("model_mismatch", 2)]


def test_one_line_too_many_ends_the_reading() -> None:
    records = [record(custom_id=str(n)) for n in range(4)]
    limits = FileLimits(max_lines=3)
    assert validate(file_of(*records[:3]), limits=limits)[0].ok
    report, good = validate(file_of(*records), limits=limits)
    assert [(error.code, error.line) for error in report.errors] == [("too_many_tasks", 4)]
    assert len(good) == 3


def test_fifty_thousand_short_lines_pass_and_one_more_fails() -> None:
    validator = FileValidator(RULES)
    for n in range(50_000):
        assert validator.push(raw(record(custom_id=f"{n}"), n + 1)) is not None
    assert not validator.full
    assert validator.push(raw(record(custom_id="last"), 50_001)) is None
    assert validator.full
    assert validator.finish().errors[0].code == "too_many_tasks"


def test_a_file_over_the_byte_limit_is_refused() -> None:
    data = file_of(record())
    assert validate(data, limits=FileLimits(max_bytes=len(data)))[0].ok
    report, _ = validate(data, limits=FileLimits(max_bytes=len(data) - 1))
    assert [error.code for error in report.errors] == ["file_too_large"]
    padded, _ = validate(data + b"\n" * 50, limits=FileLimits(max_bytes=len(data)))
    assert [error.code for error in padded.errors] == ["file_too_large"]


def test_errors_are_counted_beyond_those_told() -> None:
    report, _ = validate(b"x\n" * 250, limits=FileLimits(max_errors=100))
    assert (report.error_count, len(report.errors)) == (250, 100)


def test_the_error_that_ended_the_reading_is_told_even_when_the_list_is_full() -> None:
    report, _ = validate(b"x\n" * 5, limits=FileLimits(max_lines=4, max_errors=2))
    assert [error.code for error in report.errors] == ["invalid_json_line", "too_many_tasks"]


def test_a_file_of_blank_lines_is_empty() -> None:
    report, _ = validate(b"\n \r\n\xef\xbb\xbf".replace(b"\xef\xbb\xbf", b"\t"))
    assert [(error.code, error.line) for error in report.errors] == [("empty_file", None)]
