"""What an input file asks for."""

from __future__ import annotations

import json

from services.cli.core.input_check import summarize


def line(model: object = "m", url: object = "/v1/chat/completions") -> bytes:
    return json.dumps({"custom_id": "a", "url": url, "body": {"model": model}}).encode() + b"\n"


def test_models_and_endpoints_come_with_the_first_line_that_names_them() -> None:
    summary = summarize([line("a"), line("b", "/v1/completions"), line("a")])
    assert summary.lines == 3
    assert summary.models == {"a": 1, "b": 2}
    assert summary.endpoints == {"/v1/chat/completions": 1, "/v1/completions": 2}


def test_blank_lines_are_lines_and_no_requests() -> None:
    summary = summarize([b"\n", b"  \r\n", line("a")])
    assert summary.lines == 1
    assert summary.models == {"a": 3}


def test_a_byte_order_mark_hides_nothing() -> None:
    assert summarize([b"\xef\xbb\xbf" + line("a")]).models == {"a": 1}


def test_what_is_no_request_is_left_to_the_router() -> None:
    odd = [b"{not json\n", b"[1]\n", b"3\n", line(model=7), b'{"body": []}\n', b"\xff\xfe\n"]
    summary = summarize(odd)
    assert summary.lines == 6
    assert summary.models == {}
