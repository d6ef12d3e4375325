"""Types of a message's optional fields; roles and contents are checked where they are rendered."""

from __future__ import annotations

from services.router.core.fields import Body, check_object, wrong_type, wrong_value

_TEXTS = ("name", "tool_call_id", "refusal", "reasoning_content")


def check_message(field: str, value: object) -> None:
    """Raises BadRequest for a message that is no object, or for an optional field of a wrong type.

    field: "messages[3]".
    """
    message = check_object(field, value)
    _check_texts(field, message, _TEXTS)
    calls = message.get("tool_calls")
    if calls is None:
        return
    if not isinstance(calls, list):
        raise wrong_type(f"{field}.tool_calls", "an array", calls)
    for index, call in enumerate(calls):
        _check_call(f"{field}.tool_calls[{index}]", call)


def _check_call(field: str, value: object) -> None:
    call = check_object(field, value)
    _check_texts(field, call, ("id",))
    if call.get("type") not in (None, "function"):
        raise wrong_value(f"{field}.type", "'function'", call["type"])


def _check_texts(field: str, body: Body, names: tuple[str, ...]) -> None:
    for name in names:
        text = body.get(name)
        if text is not None and not isinstance(text, str):
            raise wrong_type(f"{field}.{name}", "a string", text)
