"""Where each message starts in a rendered chat, so that a broken prefix can be explained.

Found by marking, with two renderings however many messages there are: each message gets a mark, a
character that is nowhere else, in the middle of its content (a template may look at content's
ends), and the chat is rendered again. If that text without its marks is the real one, the marks
tell certainly where each content is. A message's header (`<|im_start|>user\n`) is measured by one
more rendering for each new sequence of two roles, and taken to be part of the message wherever
the same header stands before the content.

Where a template does not play along (it looks inside the content, repeats or drops it), the spans
are those of the leading messages whose own rendering is a prefix of the whole, which is certain
too, within a bound of work; then there are fewer spans, never wrong ones.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from libs.errors import ImpalaError
from libs.text.messages import Message

HASH_BYTES = 16
_MARKS = "\ue000\ue8ff\uf0f0\uf8ff"
_PREFIX_WORK = 16
"""Prefix renderings may produce this many times the text's length."""

Render = Callable[[Sequence[Message], Sequence[Any], bool], str]
"""(messages, tools, add_generation_prompt) -> text"""


@dataclass(frozen=True, slots=True)
class CharSpan:
    """One part of the rendered text; it ends where the next one starts."""

    role: str
    """As the client sent it."""
    kind: str
    """text, tool_call, tool_result, tools or generation_prompt."""
    start: int
    """First character, from 0; ascending over spans."""
    hash: bytes
    """16 bytes over what the client sent for it."""


def find_spans(
    render: Render,
    messages: Sequence[Message],
    tools: Sequence[Any],
    add_generation_prompt: bool,
    text: str,
) -> tuple[CharSpan, ...]:
    """The spans of `text`, which is what `render` makes of the other arguments."""
    finder = _Finder(render, messages, tools, text)
    spans = finder.by_marks(add_generation_prompt)
    if spans is None:
        spans = finder.by_prefixes()
    elif add_generation_prompt and (end := finder.prefix_end(len(messages))) is not None:
        spans.append(CharSpan("assistant", "generation_prompt", end, _digest(text[end:])))
    return tuple(sorted(spans, key=lambda span: span.start))


class _Finder:
    def __init__(
        self, render: Render, messages: Sequence[Message], tools: Sequence[Any], text: str
    ) -> None:
        self._render = render
        self._messages = messages
        self._tools = tools
        self._text = text
        self._work = _PREFIX_WORK * len(text)
        self._headers: dict[tuple[str, str, bool, str], str | None] = {}

    def by_marks(self, add_generation_prompt: bool) -> list[CharSpan] | None:
        """None where marks change the text or do not come once each and in order."""
        mark = next((char for char in _MARKS if char not in self._text), None)
        if mark is None:
            return None
        marked = [_marked(message, mark) for message in self._messages]
        tools, tools_lead = _marked_tools(self._tools, mark)
        try:
            text = self._render([message for message, _ in marked], tools, add_generation_prompt)
        except ImpalaError:
            return None
        pieces = text.split(mark)
        if "".join(pieces) != self._text:
            return None
        leads = [lead for _, lead in marked]
        return self._spans_at(_ends(pieces), leads, tools_lead)

    def by_prefixes(self) -> list[CharSpan]:
        """The leading messages that are certain. The first is not found: the text's own start
        may be the template's."""
        spans = [_span(self._messages[0], 0)] if self._messages else []
        for index in range(1, len(self._messages)):
            start = self.prefix_end(index)
            if start is None or start < spans[-1].start:
                break
            spans.append(_span(self._messages[index], start))
        return spans

    def prefix_end(self, count: int) -> int | None:
        """Where the text of the first `count` messages ends, if that is certain."""
        whole = count == len(self._messages)
        if count == 0 or (self._work <= 0 and not whole):
            return None
        try:
            prefix = self._render(self._messages[:count], self._tools, False)
        except ImpalaError:
            return None
        self._work -= len(prefix)
        return len(prefix) if self._text.startswith(prefix) else None

    def _spans_at(
        self, places: list[int], leads: list[str | None], tools_lead: str | None
    ) -> list[CharSpan] | None:
        """Spans for marks at `places`, in the order of the text; each after its lead."""
        owners = [(i, lead) for i, lead in enumerate(leads) if lead is not None]
        if tools_lead is None:
            return self._message_spans(places, owners) if len(places) == len(owners) else None
        if len(places) != len(owners) + 1:
            return None
        # The tools stand before, in or after the first system message: try each place.
        for at in range(min(len(places), 2)):
            rest = places[:at] + places[at + 1 :]
            if self._text[: places[at]].endswith(tools_lead):
                spans = self._message_spans(rest, owners)
                if spans is not None:
                    start = places[at] - len(tools_lead)
                    tools = CharSpan("system", "tools", start, _digest(self._tools))
                    return [*spans, tools]
        return None

    def _message_spans(
        self, places: list[int], owners: list[tuple[int, str]]
    ) -> list[CharSpan] | None:
        spans: list[CharSpan] = []
        for place, (index, lead) in zip(places, owners, strict=True):
            if not self._text[:place].endswith(lead):
                return None
            start = self._with_header(index, place - len(lead))
            if spans and start < spans[-1].start:
                start = place - len(lead)
            spans.append(_span(self._messages[index], start))
        return spans

    def _with_header(self, index: int, content_start: int) -> int:
        """The message's start: before its header, where the header is known, and before the
        blanks that its content begins with."""
        if index == 0:
            return 0
        message = self._messages[index]
        blanks = _leading_blanks(message.content)
        by_name = not message.content.strip()
        key = (self._messages[index - 1].role, message.role, by_name, blanks)
        if key not in self._headers:
            end = self.prefix_end(index)
            known = end is not None and end <= content_start
            self._headers[key] = self._text[end:content_start] if known else None
        for header in (self._headers[key], blanks):
            if header and self._text.endswith(header, 0, content_start):
                return content_start - len(header)
        return content_start


def kind_of(message: Message) -> str:
    if message.role == "tool":
        return "tool_result"
    return "tool_call" if message.tool_calls else "text"


def _span(message: Message, start: int) -> CharSpan:
    content = [message.sent_role, message.content, message.name, message.tool_call_id]
    calls = [[call.name, call.arguments] for call in message.tool_calls]
    return CharSpan(
        message.sent_role or message.role, kind_of(message), start, _digest([*content, calls])
    )


def _digest(value: object) -> bytes:
    data = json.dumps(value, ensure_ascii=True).encode()
    return hashlib.blake2b(data, digest_size=HASH_BYTES).digest()


def _ends(pieces: list[str]) -> list[int]:
    """Where each piece but the last ends when they are joined."""
    places, total = [], 0
    for piece in pieces[:-1]:
        total += len(piece)
        places.append(total)
    return places


def _leading_blanks(content: str) -> str:
    return content[: len(content) - len(content.lstrip())]


def _marked(message: Message, mark: str) -> tuple[Message, str | None]:
    """The message with a mark, and its text before the mark; None: nothing to put one in."""
    body = message.content.strip()
    if body:
        lead = body[: len(body) // 2]
        at = len(_leading_blanks(message.content)) + len(lead)
        content = message.content
        return message.with_content(content[:at] + mark + content[at:]), lead
    if message.tool_calls and message.tool_calls[0].name:
        call = message.tool_calls[0]
        lead = call.name[: len(call.name) // 2]
        named = replace(call, name=lead + mark + call.name[len(lead) :])
        return replace(message, tool_calls=(named, *message.tool_calls[1:])), lead
    return message, None


def _marked_tools(tools: Sequence[Any], mark: str) -> tuple[Sequence[Any], str | None]:
    """The tools with a mark in the first one's name."""
    if not tools:
        return tools, None
    function = tools[0]["function"]
    name = function["name"]
    lead = name[: len(name) // 2]
    first = tools[0] | {"function": function | {"name": lead + mark + name[len(lead) :]}}
    return [first, *tools[1:]], lead
