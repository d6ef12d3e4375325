"""Tools in the Hermes form, for templates that know none.

The form of NousResearch's Hermes models, in the wording that Qwen 2.5's template uses: the tools
as JSON lines in the system message, calls as `<tool_call>` in the assistant's, results as
`<tool_response>` in a user message, results that follow one another in one message.

A call's arguments are written as the text that the client sent: what a model wrote comes back
character for character (so its prefix stays cached), and broken JSON does no harm.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from libs.text.messages import Message, ToolCall

_INTRODUCTION = """# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>
{tools}
</tools>

For each function call, return a json object with function name and arguments within \
<tool_call></tool_call> XML tags:
<tool_call>
{{"name": <function-name>, "arguments": <args-json-object>}}
</tool_call>"""


def tools_text(tools: Sequence[Any]) -> str:
    """What the system message says of the tools, in the order given."""
    lines = (json.dumps(tool, ensure_ascii=False) for tool in tools)
    return _INTRODUCTION.format(tools="\n".join(lines))


def with_tools_in_system(messages: Sequence[Message], tools: Sequence[Any]) -> list[Message]:
    """The tools after the text of the first system message, or in one of their own."""
    text = tools_text(tools)
    if messages and messages[0].role == "system":
        first = messages[0]
        own = f"{first.content}\n\n{text}" if first.content else text
        return [first.with_content(own), *messages[1:]]
    return [Message("system", text), *messages]


def with_calls_as_text(messages: Sequence[Message]) -> list[Message]:
    """Assistant messages whose calls are part of their content."""
    return [_calls_as_text(message) if message.tool_calls else message for message in messages]


def with_results_as_users(messages: Sequence[Message]) -> list[Message]:
    """User messages in place of tool messages; neighbours share one."""
    result: list[Message] = []
    after_tool = False
    for message in messages:
        if message.role != "tool":
            result.append(message)
        elif after_tool:
            joined = f"{result[-1].content}\n{_response(message)}"
            result[-1] = result[-1].with_content(joined)
        else:
            result.append(Message("user", _response(message)))
        after_tool = message.role == "tool"
    return result


def _calls_as_text(message: Message) -> Message:
    parts = [message.content] if message.content else []
    parts += [_call(call) for call in message.tool_calls]
    return Message("assistant", "\n".join(parts), reasoning=message.reasoning)


def _call(call: ToolCall) -> str:
    name = json.dumps(call.name, ensure_ascii=False)
    return f'<tool_call>\n{{"name": {name}, "arguments": {call.arguments}}}\n</tool_call>'


def _response(message: Message) -> str:
    return f"<tool_response>\n{message.content}\n</tool_response>"
