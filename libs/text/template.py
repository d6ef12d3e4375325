"""A model's chat template: messages in, prompt text out, with where each message starts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import jinja2

from libs.errors import ImpalaError
from libs.text import hermes
from libs.text.errors import MessageError, NoChatTemplate, TemplateError, TokenizerError
from libs.text.jinja import compile_template
from libs.text.messages import Message, ToolCall, parse_messages
from libs.text.spans import CharSpan, find_spans
from libs.text.tokenizer import Tokenizer

_PROBE = "probe_qzx"
_PROBE_TOOL = {
    "type": "function",
    "function": {
        "name": _PROBE,
        "description": "",
        "parameters": {"type": "object", "properties": {}, "required": []},
    },
}
_PROBE_CALL = ToolCall("qzxqzxqzx", _PROBE, "{}")
_PROBE_USER = Message("user", "Hi")


@dataclass(frozen=True, slots=True)
class Rendered:
    """A prompt. `spans` may leave out messages whose place is not certain."""

    text: str
    spans: tuple[CharSpan, ...]


@dataclass(frozen=True, slots=True)
class TokenSpan:
    """A span of the prompt's tokens; see `CharSpan`."""

    role: str
    kind: str
    start_token: int
    hash: bytes


@dataclass(frozen=True, slots=True)
class Knowledge:
    """Which parts of tool use a template renders itself; the others go in the Hermes form."""

    tools: bool
    calls: bool
    results: bool


class ChatTemplate:
    """One compiled template. `now` is the clock of templates that write the date."""

    def __init__(
        self, source: str, special_tokens: Mapping[str, str], now: Callable[[], datetime]
    ) -> None:
        try:
            self._template = compile_template(source, now)
        except jinja2.TemplateError as error:
            raise TokenizerError(f"The model's chat template is broken: {error}.") from error
        self._special_tokens = dict(special_tokens)
        self.knows = self._probe()

    def render(
        self,
        messages: Sequence[object],
        tools: Sequence[Any] | None = None,
        add_generation_prompt: bool = True,
    ) -> Rendered:
        """The prompt for OpenAI-form messages and tools.

        Raises `MessageError` (a message cannot be rendered) or `TemplateError` (the template
        refuses, for instance two user messages in a row).
        """
        parsed = parse_messages(messages)
        given = list(tools or ())
        try:
            text = self._text(parsed, given, add_generation_prompt)
            spans = find_spans(self._text, parsed, given, add_generation_prompt, text)
        except RecursionError as error:
            raise MessageError("tools", "A tool or argument is nested too deeply.") from error
        return Rendered(text, spans)

    def _text(self, messages: Sequence[Message], tools: Sequence[Any], prompt: bool) -> str:
        if tools and not self.knows.tools:
            messages = hermes.with_tools_in_system(messages, tools)
            tools = ()
        if not self.knows.calls:
            messages = hermes.with_calls_as_text(messages)
        if not self.knows.results:
            messages = hermes.with_results_as_users(messages)
        return self._run(messages, tools, prompt)

    def _run(self, messages: Sequence[Message], tools: Sequence[Any], prompt: bool) -> str:
        try:
            return self._render_raw([_as_dict(m, None) for m in messages], tools, prompt)
        except TemplateError:
            if all(c.parsed() is not None for m in messages for c in m.tool_calls):
                raise
        # Some templates iterate over arguments: such that are no object are left out for them.
        return self._render_raw([_as_dict(m, {}) for m in messages], tools, prompt)

    def _render_raw(
        self, messages: list[dict[str, Any]], tools: Sequence[Any], prompt: bool
    ) -> str:
        try:
            return self._template.render(
                messages=messages,
                tools=list(tools) or None,
                documents=None,
                add_generation_prompt=prompt,
                **self._special_tokens,
            )
        except (jinja2.TemplateError, TypeError, ValueError, LookupError, AttributeError) as error:
            raise TemplateError(str(error)) from error

    def _probe(self) -> Knowledge:
        """What the template knows, by looking for what is put in."""
        tools = self._shows([_PROBE_USER], [_PROBE_TOOL])
        call = Message("assistant", "", (_PROBE_CALL,))
        calls = self._shows([_PROBE_USER, call], [])
        result = Message("tool", _PROBE, tool_call_id=_PROBE_CALL.id, name="f")
        before = Message("assistant", "", (ToolCall(_PROBE_CALL.id, "f", "{}"),))
        # A template that knows no calls may still print any role; that is not knowing results.
        results = calls and self._shows([_PROBE_USER, before, result], [])
        return Knowledge(tools, calls, results)

    def _shows(self, messages: list[Message], tools: list[Any]) -> bool:
        try:
            return _PROBE in self._run(messages, tools, False)
        except ImpalaError:
            return False


def chat_template(tokenizer: Tokenizer, now: Callable[[], datetime]) -> ChatTemplate:
    """The tokenizer's model's template; raises `NoChatTemplate`."""
    source = tokenizer.files.chat_template
    if source is None:
        raise NoChatTemplate
    return ChatTemplate(source, tokenizer.files.special_tokens, now)


def tokenize_rendered(
    tokenizer: Tokenizer, rendered: Rendered
) -> tuple[list[int], tuple[TokenSpan, ...]]:
    """The prompt's token ids, and its spans in tokens.

    Special tokens come from the template alone, none are added.
    """
    ids, starts = tokenizer.encode_at(rendered.text, [span.start for span in rendered.spans])
    spans = tuple(
        TokenSpan(span.role, span.kind, start, span.hash)
        for span, start in zip(rendered.spans, starts, strict=True)
    )
    return ids, spans


def _as_dict(message: Message, broken_arguments: dict[str, Any] | None) -> dict[str, Any]:
    """The message as templates read it. `broken_arguments` stand in for arguments that are no
    object; None leaves those as the text they are."""
    result: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.tool_calls:
        result["tool_calls"] = [_call_dict(c, broken_arguments) for c in message.tool_calls]
    if message.tool_call_id is not None:
        result["tool_call_id"] = message.tool_call_id
    if message.name is not None:
        result["name"] = message.name
    if message.reasoning is not None:
        result["reasoning_content"] = message.reasoning
    return result


def _call_dict(call: ToolCall, broken: dict[str, Any] | None) -> dict[str, Any]:
    arguments: Any = call.parsed()
    if arguments is None:
        arguments = call.arguments if broken is None else broken
    return {
        "id": call.id,
        "type": "function",
        "function": {"name": call.name, "arguments": arguments},
    }
