"""Chat messages as clients send them, in the one form that templates get.

Forgiving where agents' histories are (null content beside calls, arguments that are broken JSON,
`developer` for `system`, the old `function` forms), exact where an answer would silently miss
something: content that is no text is refused with the field's name.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from libs.text.errors import MessageError

_ROLES = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
    "function": "tool",
}


@dataclass(frozen=True, slots=True)
class ToolCall:
    id: str
    name: str
    arguments: str
    """As text, which may be broken JSON."""

    def parsed(self) -> dict[str, Any] | None:
        """The arguments as an object; None where they are not one."""
        try:
            value = json.loads(self.arguments)
        except (ValueError, RecursionError):
            return None
        return value if isinstance(value, dict) else None


@dataclass(frozen=True, slots=True)
class Message:
    role: str
    """As templates know it: system, user, assistant or tool."""
    content: str
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    name: str | None = None
    reasoning: str | None = None
    sent_role: str = ""
    """As the client wrote it."""

    def with_content(self, content: str) -> Message:
        return replace(self, content=content)


def parse_messages(messages: Sequence[object]) -> tuple[Message, ...]:
    """Raises `MessageError` at the first field that cannot be rendered."""
    return tuple(_message(f"messages[{i}]", message) for i, message in enumerate(messages))


def _message(field: str, value: object) -> Message:
    if not isinstance(value, Mapping):
        raise MessageError(field, f"'{field}' must be an object.")
    sent = value.get("role")
    role = _ROLES.get(sent) if isinstance(sent, str) else None
    if role is None or not isinstance(sent, str):
        names = ", ".join(_ROLES)
        raise MessageError(f"{field}.role", f"'{field}.role' must be one of {names}.")
    calls = _tool_calls(field, value) if role == "assistant" else ()
    return Message(
        role=role,
        content=_content(field, value, may_be_null=role == "assistant"),
        tool_calls=calls,
        tool_call_id=_text_or_none(value.get("tool_call_id")),
        name=_text_or_none(value.get("name")),
        reasoning=_text_or_none(value.get("reasoning_content")),
        sent_role=sent,
    )


def _content(field: str, message: Mapping[str, Any], may_be_null: bool) -> str:
    content = message.get("content")
    if isinstance(content, str):
        return content
    if content is None:
        refusal = message.get("refusal")
        if may_be_null:
            return refusal if isinstance(refusal, str) else ""
        raise MessageError(f"{field}.content", f"'{field}.content' is missing.")
    if not isinstance(content, list):
        raise MessageError(
            f"{field}.content", f"'{field}.content' must be a string or an array of parts."
        )
    return "".join(_part(f"{field}.content[{i}]", part) for i, part in enumerate(content))


def _part(field: str, part: object) -> str:
    if isinstance(part, str):
        return part
    if not isinstance(part, Mapping):
        raise MessageError(field, f"'{field}' must be an object.")
    kind = part.get("type")
    key = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}
    if not isinstance(kind, str) or kind not in key:
        raise MessageError(
            f"{field}.type",
            f"'{field}.type' is {str(kind)[:40]!r}: this model reads text only ('text').",
        )
    text = part.get(key[kind])
    if not isinstance(text, str):
        raise MessageError(f"{field}.{key[kind]}", f"'{field}.{key[kind]}' must be a string.")
    return text


def _tool_calls(field: str, message: Mapping[str, Any]) -> tuple[ToolCall, ...]:
    calls = message.get("tool_calls")
    if calls is None:
        old = message.get("function_call")
        if old is None:
            return ()
        return (_function(f"{field}.function_call", "", old),)
    if not isinstance(calls, list):
        raise MessageError(f"{field}.tool_calls", f"'{field}.tool_calls' must be an array.")
    return tuple(_tool_call(f"{field}.tool_calls[{i}]", call) for i, call in enumerate(calls))


def _tool_call(field: str, call: object) -> ToolCall:
    if not isinstance(call, Mapping):
        raise MessageError(field, f"'{field}' must be an object.")
    call_id = call.get("id")
    return _function(
        f"{field}.function", call_id if isinstance(call_id, str) else "", call.get("function")
    )


def _function(field: str, call_id: str, function: object) -> ToolCall:
    if not isinstance(function, Mapping):
        raise MessageError(field, f"'{field}' must be an object.")
    name = function.get("name")
    if not isinstance(name, str):
        raise MessageError(f"{field}.name", f"'{field}.name' must be a string.")
    return ToolCall(call_id, name, _arguments(function.get("arguments")))


def _arguments(value: object) -> str:
    """Never refused: a call that was cut short must not end the conversation for good."""
    if value is None or value == "":
        return "{}"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _text_or_none(value: object) -> str | None:
    return value if isinstance(value, str) else None
