"""What an input file asks for."""

from __future__ import annotations

import json

from services.cli.core.input_check import foreign_endpoint, renamed, summarize


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


def test_the_first_line_without_a_model_is_noted() -> None:
    summary = summarize([line("a"), b'{"body": {"model": null}}\n', b'{"body": {}}\n'])
    assert summary.unnamed == 2
    assert summary.models == {"a": 1}
    assert summarize([line("a"), b'{"body": []}\n', line(7)]).unnamed == 0


def test_a_model_is_filled_in_where_there_is_none_or_another_and_nowhere_else() -> None:
    kept = [line("m"), b"\n", b"{not json\n", line(7), b'{"body":  []}\n']
    bare = [b'\xef\xbb\xbf{"body": {"n": 1}}\n', *kept, b'{"body": {"model": "a"}}']
    filled = list(renamed(bare, "m"))
    assert filled[1:-1] == kept
    assert filled[0] == b'{"body":{"n":1,"model":"m"}}\n'
    assert filled[-1] == b'{"body":{"model":"m"}}'


def test_an_endpoint_that_no_batch_has_is_named_with_its_line() -> None:
    full = "https://api.openai.com/v1/chat/completions"
    said = foreign_endpoint(summarize([b"\n", line(url=full)]))
    assert said.startswith(f"Line 2 has the 'url' '{full}', which must be one of ")
    assert foreign_endpoint(summarize([line(), line(url=full)])) == ""
    assert foreign_endpoint(summarize([line(url=None)])) == ""
