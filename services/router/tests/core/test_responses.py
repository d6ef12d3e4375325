"""Answers as the official client's own types read them, strictly."""

from __future__ import annotations

import json
import math
from typing import Any, TypeVar

import pytest
from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from pydantic import BaseModel

from services.router.core.output_line import is_output, no_reply_line, reply_line
from services.router.core.responses import (
    SSE_DONE,
    Choice,
    ReplyHead,
    TokenLogprob,
    ToolCall,
    TopLogprob,
    Usage,
    chat_completion,
    chat_finish_chunk,
    chat_role_chunk,
    chat_text_chunk,
    chat_usage_chunk,
    sse_error,
    sse_event,
    text_chunk,
    text_completion,
    text_usage_chunk,
)

Model = TypeVar("Model", bound=BaseModel)

HEAD = ReplyHead("chatcmpl-1", 1_800_000_000, "m", "v3", "default")
USAGE = Usage(prompt_tokens=10, completion_tokens=4, cached_tokens=8)
LOGPROBS = (
    TokenLogprob("\u00e9", "\u00e9".encode(), -0.5, (TopLogprob("x", b"x", -math.inf),)),
    TokenLogprob("bc", b"bc", -math.inf),
)


def strict(kind: type[Model], value: dict[str, Any]) -> Model:
    """As the client's strict mode does: from JSON, types as they are."""
    return kind.model_validate_json(json.dumps(value, allow_nan=False), strict=True)


def test_a_chat_completion() -> None:
    choices = [Choice(0, "hello", "stop"), Choice(1, "he", "length")]
    reply = strict(ChatCompletion, chat_completion(HEAD, choices, USAGE))
    assert [choice.message.content for choice in reply.choices] == ["hello", "he"]
    assert [choice.finish_reason for choice in reply.choices] == ["stop", "length"]
    assert reply.usage is not None
    assert (reply.usage.total_tokens, reply.usage.prompt_tokens) == (14, 10)
    assert reply.usage.prompt_tokens_details is not None
    assert reply.usage.prompt_tokens_details.cached_tokens == 8
    assert (reply.system_fingerprint, reply.service_tier) == ("fp_v3", "default")
    assert chat_completion(HEAD, choices, USAGE)["weight_version"] == "v3"


def test_a_chat_completion_with_tool_calls_has_no_empty_content() -> None:
    choice = Choice(0, "", "tool_calls", None, (ToolCall("call_1", "f", '{"a": '),))
    reply = strict(ChatCompletion, chat_completion(HEAD, [choice], USAGE))
    message = reply.choices[0].message
    assert message.content is None
    assert message.tool_calls is not None
    assert message.tool_calls[0].id == "call_1"


def test_chat_logprobs_carry_bytes_and_no_infinity() -> None:
    choice = Choice(0, "\u00e9bc", "stop", LOGPROBS)
    reply = strict(ChatCompletion, chat_completion(HEAD, [choice], USAGE))
    assert reply.choices[0].logprobs is not None
    first, second = reply.choices[0].logprobs.content or []
    assert (first.token, first.bytes, first.logprob) == ("\u00e9", [0xC3, 0xA9], -0.5)
    assert first.top_logprobs[0].logprob == second.logprob == -9999.0
    assert second.top_logprobs == []


def test_the_chunks_of_a_chat_stream() -> None:
    chunks = [
        chat_role_chunk(HEAD, 0),
        chat_text_chunk(HEAD, 0, "he", LOGPROBS),
        chat_text_chunk(HEAD, 0, "llo"),
        chat_finish_chunk(HEAD, 0, "stop"),
        chat_usage_chunk(HEAD, USAGE),
    ]
    read = [strict(ChatCompletionChunk, chunk) for chunk in chunks]
    deltas = [choice.delta for chunk in read for choice in chunk.choices]
    assert "".join(delta.content or "" for delta in deltas) == "hello"
    assert deltas[0].role == "assistant"
    assert [c.finish_reason for chunk in read for c in chunk.choices] == [None, None, None, "stop"]
    assert [chunk.usage is not None for chunk in read] == [False] * 4 + [True]
    assert read[-1].choices == []


def test_a_text_completion_with_logprobs() -> None:
    reply = strict(Completion, text_completion(HEAD, [Choice(0, "ebc", "stop", LOGPROBS)], USAGE))
    logprobs = reply.choices[0].logprobs
    assert logprobs is not None
    assert (logprobs.tokens, logprobs.text_offset) == (["\u00e9", "bc"], [0, 1])
    assert logprobs.token_logprobs == [-0.5, -9999.0]
    assert reply.usage is not None


def test_the_last_chunk_of_a_text_stream_tells_why_it_ended() -> None:
    chunk = strict(Completion, text_chunk(HEAD, 2, "lo", "length", LOGPROBS, text_offset=3))
    assert (chunk.choices[0].index, chunk.choices[0].finish_reason) == (2, "length")
    assert chunk.choices[0].logprobs is not None
    assert chunk.choices[0].logprobs.text_offset == [3, 4]
    assert strict(Completion, text_usage_chunk(HEAD, USAGE)).choices == []


def test_a_chunk_of_a_text_stream_has_no_reason_before_the_end() -> None:
    choice = text_chunk(HEAD, 0, "he")["choices"][0]
    assert (choice["text"], choice["finish_reason"], choice["logprobs"]) == ("he", None, None)


def test_events_are_one_line_of_data_each() -> None:
    event = sse_event(chat_text_chunk(HEAD, 0, "a\nb\u2028"))
    assert event.startswith(b"data: {")
    assert event.endswith(b"}\n\n")
    assert event.count(b"\n") == 2
    error = sse_error({"error": {"message": "m"}})
    assert error == b'event: error\ndata: {"error":{"message":"m"}}\n\n'
    assert SSE_DONE == b"data: [DONE]\n\n"


def test_without_a_weight_version_the_fingerprint_is_null() -> None:
    reply = strict(ChatCompletion, chat_completion(ReplyHead("c", 1, "m", ""), [], USAGE))
    assert reply.system_fingerprint is None


@pytest.mark.parametrize("status", [200, 400, 500])
def test_a_reply_good_or_bad_is_a_line_without_error(status: int) -> None:
    line = reply_line("batch_req_1", "r1", "req_1", status, {"error": {"message": "no"}})
    assert json.loads(line) == {
        "id": "batch_req_1",
        "custom_id": "r1",
        "response": {
            "status_code": status,
            "request_id": "req_1",
            "body": {"error": {"message": "no"}},
        },
        "error": None,
    }
    assert is_output(status) == (status == 200)


@pytest.mark.parametrize("code", ["batch_expired", "batch_cancelled", "engine_lost"])
def test_a_request_without_a_reply_tells_why(code: str) -> None:
    record = json.loads(no_reply_line("batch_req_1", "r1", code))
    assert record["response"] is None
    assert record["error"]["code"] == code
    assert record["error"]["message"].endswith(".")


def test_an_output_line_is_one_line_to_every_reader() -> None:
    odd = "\u2028\u2029\u0085\n\r\x0b\x0c\U0001f600\u00e9"
    line = reply_line("i", odd, "q", 200, {"text": odd})
    assert line.isascii()
    assert line.decode().splitlines() == [line.decode().rstrip("\n")]
    assert json.loads(line)["custom_id"] == json.loads(line)["response"]["body"]["text"] == odd
