"""Answers in OpenAI's forms, whole and as stream chunks. Values in, plain dicts out.

`system_fingerprint` and `weight_version` name the weights that sampled the answer. Every answer,
streamed or not, is built from the same parts, so that the two cannot differ.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import orjson

FinishReason = Literal["stop", "length", "tool_calls"]

LOWEST_LOGPROB = -9999.0
"""Stands for minus infinity, which JSON has not."""

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one request; the prompt counts once, the completions of all choices add up."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0
    """Of the prompt's: those whose KV was not computed for this request."""


@dataclass(frozen=True, slots=True)
class TopLogprob:
    """One candidate for a token's place."""

    token: str
    token_bytes: bytes
    logprob: float


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """One sampled token with the best candidates for its place, best first."""

    token: str
    token_bytes: bytes
    logprob: float
    top: tuple[TopLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call that the model made; `arguments` is its text, which may be broken JSON."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Choice:
    """One finished answer. `logprobs` is None where none were asked for."""

    index: int
    text: str
    finish_reason: FinishReason
    logprobs: tuple[TokenLogprob, ...] | None = None
    tool_calls: tuple[ToolCall, ...] = ()


@dataclass(frozen=True, slots=True)
class ReplyHead:
    """What every object of one reply repeats."""

    id: str
    """`chatcmpl-...` or `cmpl-...`."""
    created: int
    """Unix seconds."""
    model: str
    weight_version: str
    service_tier: str | None = None

    def fields(self, kind: str) -> Json:
        fields: Json = {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": f"fp_{self.weight_version}" if self.weight_version else None,
            "weight_version": self.weight_version or None,
        }
        if self.service_tier is not None:
            fields["service_tier"] = self.service_tier
        return fields


def usage_object(usage: Usage) -> Json:
    """The usage of chat and text completions."""
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": 0},
    }


def chat_completion(head: ReplyHead, choices: Sequence[Choice], usage: Usage) -> Json:
    """A `chat.completion`."""
    return head.fields("chat.completion") | {
        "choices": [_chat_choice(choice) for choice in choices],
        "usage": usage_object(usage),
    }


def chat_role_chunk(head: ReplyHead, index: int) -> Json:
    """The first chunk of a choice."""
    return _chat_chunk(head, index, {"role": "assistant", "content": ""}, None, None)


def chat_text_chunk(
    head: ReplyHead, index: int, text: str, logprobs: Sequence[TokenLogprob] | None = None
) -> Json:
    """More of a choice's text."""
    return _chat_chunk(head, index, {"content": text}, None, logprobs)


def chat_finish_chunk(
    head: ReplyHead,
    index: int,
    reason: FinishReason,
    logprobs: Sequence[TokenLogprob] | None = None,
) -> Json:
    """The last chunk of a choice; carries logprobs of tokens that gave no text."""
    return _chat_chunk(head, index, {}, reason, logprobs)


def chat_usage_chunk(head: ReplyHead, usage: Usage) -> Json:
    """The one chunk with usage: after all choices, before the end."""
    return head.fields("chat.completion.chunk") | {"choices": [], "usage": usage_object(usage)}


def text_completion(head: ReplyHead, choices: Sequence[Choice], usage: Usage) -> Json:
    """A `text_completion`."""
    return head.fields("text_completion") | {
        "choices": [
            {
                "index": choice.index,
                "text": choice.text,
                "finish_reason": choice.finish_reason,
                "logprobs": _text_logprobs(choice.logprobs, 0),
            }
            for choice in choices
        ],
        "usage": usage_object(usage),
    }


def text_chunk(
    head: ReplyHead,
    index: int,
    text: str,
    reason: FinishReason | None = None,
    logprobs: Sequence[TokenLogprob] | None = None,
    text_offset: int = 0,
) -> Json:
    """More of a choice's text, or its end. `text_offset`: characters sent for it before."""
    return head.fields("text_completion") | {
        "choices": [
            {
                "index": index,
                "text": text,
                "finish_reason": reason,
                "logprobs": _text_logprobs(logprobs, text_offset),
            }
        ],
    }


def text_usage_chunk(head: ReplyHead, usage: Usage) -> Json:
    """The one chunk with usage: after all choices, before the end."""
    return head.fields("text_completion") | {"choices": [], "usage": usage_object(usage)}


SSE_DONE = b"data: [DONE]\n\n"
"""Ends a stream that went well, and no other."""

SSE_KEEPALIVE = b": keep-alive\n\n"


def sse_event(data: Mapping[str, Any]) -> bytes:
    """One server-sent event."""
    return b"data: " + orjson.dumps(data) + b"\n\n"


def sse_error(envelope: Mapping[str, Any]) -> bytes:
    """The event that ends a stream that failed; no `[DONE]` follows."""
    return b"event: error\ndata: " + orjson.dumps(envelope) + b"\n\n"


def _chat_choice(choice: Choice) -> Json:
    message: Json = {"role": "assistant", "content": choice.text, "refusal": None}
    if choice.tool_calls:
        message["content"] = choice.text or None
        message["tool_calls"] = [_tool_call(call) for call in choice.tool_calls]
    return {
        "index": choice.index,
        "message": message,
        "finish_reason": choice.finish_reason,
        "logprobs": _chat_logprobs(choice.logprobs),
    }


def _tool_call(call: ToolCall) -> Json:
    function = {"name": call.name, "arguments": call.arguments}
    return {"id": call.id, "type": "function", "function": function}


def _chat_chunk(
    head: ReplyHead,
    index: int,
    delta: Json,
    reason: FinishReason | None,
    logprobs: Sequence[TokenLogprob] | None,
) -> Json:
    return head.fields("chat.completion.chunk") | {
        "choices": [
            {
                "index": index,
                "delta": delta,
                "finish_reason": reason,
                "logprobs": _chat_logprobs(logprobs),
            }
        ],
    }


def _chat_logprobs(logprobs: Sequence[TokenLogprob] | None) -> Json | None:
    if logprobs is None:
        return None
    content = [
        _candidate(entry) | {"top_logprobs": [_candidate(top) for top in entry.top]}
        for entry in logprobs
    ]
    return {"content": content, "refusal": None}


def _candidate(entry: TokenLogprob | TopLogprob) -> Json:
    return {
        "token": entry.token,
        "bytes": list(entry.token_bytes),
        "logprob": max(entry.logprob, LOWEST_LOGPROB),
    }


def _text_logprobs(logprobs: Sequence[TokenLogprob] | None, offset: int) -> Json | None:
    if logprobs is None:
        return None
    offsets = []
    for entry in logprobs:
        offsets.append(offset)
        offset += len(entry.token)
    return {
        "tokens": [entry.token for entry in logprobs],
        "token_logprobs": [max(entry.logprob, LOWEST_LOGPROB) for entry in logprobs],
        "top_logprobs": [
            {top.token: max(top.logprob, LOWEST_LOGPROB) for top in entry.top} for entry in logprobs
        ],
        "text_offset": offsets,
    }
