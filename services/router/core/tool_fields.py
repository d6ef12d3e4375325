"""The fields `tools` and `tool_choice` of a chat request."""

from __future__ import annotations

from typing import Any

from services.router.core.errors import BadRequest
from services.router.core.fields import (
    Body,
    check_bool,
    check_object,
    check_str,
    missing,
    read_list,
    unsupported,
    wrong_type,
    wrong_value,
)

MAX_TOOLS = 1024
MAX_NAME_CHARS = 256
MAX_DESCRIPTION_CHARS = 1_000_000


def read_tools(body: Body) -> tuple[dict[str, Any], ...]:
    """The function tools in the order given, unchanged; empty for none."""
    tools = read_list(body, "tools", MAX_TOOLS) or []
    return tuple(_tool(f"tools[{index}]", tool) for index, tool in enumerate(tools))


def read_tool_choice(body: Body, tools: tuple[dict[str, Any], ...]) -> str | None:
    """ "auto", "none" or None. What would have to force a call is refused."""
    choice = body.get("tool_choice")
    if choice is None:
        return None
    if not tools and choice in ("auto", "none"):
        return None  # What happens anyway; many clients send it always.
    if not tools and (isinstance(choice, dict) or choice == "required"):
        message = "'tool_choice' cannot ask for a call where no 'tools' are given."
        raise BadRequest(message, "tool_choice", "invalid_value")
    if isinstance(choice, dict):
        raise unsupported("tool_choice", 'a call cannot be forced yet; use "auto" or "none"')
    if not isinstance(choice, str):
        raise wrong_type("tool_choice", "a string or an object", choice)
    if choice == "required":
        raise unsupported("tool_choice", 'a call cannot be forced yet; use "auto" or "none"')
    if choice not in ("auto", "none"):
        raise wrong_value("tool_choice", "'auto' or 'none'", choice)
    return choice


def _tool(name: str, value: object) -> dict[str, Any]:
    tool = check_object(name, value)
    kind = tool.get("type")
    if kind is None:
        raise missing(f"{name}.type")
    if kind != "function":
        raise wrong_value(f"{name}.type", "'function'", kind)
    if tool.get("function") is None:
        raise missing(f"{name}.function")
    function = check_object(f"{name}.function", tool["function"])
    function_name = function.get("name")
    if function_name is None:
        raise missing(f"{name}.function.name")
    if not check_str(f"{name}.function.name", function_name, MAX_NAME_CHARS):
        raise wrong_value(f"{name}.function.name", "a non-empty string", function_name)
    if function.get("description") is not None:
        check_str(f"{name}.function.description", function["description"], MAX_DESCRIPTION_CHARS)
    if function.get("parameters") is not None:
        check_object(f"{name}.function.parameters", function["parameters"])
    if function.get("strict") is not None:
        check_bool(f"{name}.function.strict", function["strict"])
    return tool
