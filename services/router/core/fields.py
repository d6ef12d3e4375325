"""Typed reads of a JSON body's fields; every refusal names the field and the allowed values.

A field that is absent or null gives the default. `true` is no number here, though Python thinks so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from services.router.core.errors import BadRequest

Body = Mapping[str, Any]

_SHOWN_CHARS = 60


def type_name(value: object) -> str:
    """The JSON name of a value's type."""
    names: tuple[tuple[type | tuple[type, ...], str], ...] = (
        (bool, "a boolean"),
        (int, "an integer"),
        (float, "a number"),
        (str, "a string"),
        (dict, "an object"),
        ((list, tuple), "an array"),
        (type(None), "null"),
    )
    return next((name for kind, name in names if isinstance(value, kind)), "something else")


def wrong_type(name: str, wanted: str, value: object) -> BadRequest:
    message = f"Invalid type for '{name}': expected {wanted}, but got {type_name(value)} instead."
    return BadRequest(message, name, "invalid_type")


def wrong_value(name: str, wanted: str, value: object) -> BadRequest:
    shown = repr(value)
    shown = shown if len(shown) <= _SHOWN_CHARS else shown[:_SHOWN_CHARS] + "..."
    message = f"Invalid value for '{name}': expected {wanted}, but got {shown} instead."
    return BadRequest(message, name, "invalid_value")


def missing(name: str) -> BadRequest:
    message = f"Missing required parameter: '{name}'."
    return BadRequest(message, name, "missing_required_parameter")


def unsupported(name: str, why: str) -> BadRequest:
    return BadRequest(f"'{name}' is not supported: {why}.", name, "unsupported_parameter")


def read_int(body: Body, name: str, low: int, high: int) -> int | None:
    value = body.get(name)
    return None if value is None else check_int(name, value, low, high)


def check_int(name: str, value: object, low: int, high: int) -> int:
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        value = int(value)  # 16.0 is the integer 16 to JSON.
    if not isinstance(value, int) or isinstance(value, bool):
        raise wrong_type(name, "an integer", value)
    if not low <= value <= high:
        raise wrong_value(name, f"an integer from {low} to {high}", value)
    return value


def read_number(body: Body, name: str, low: float, high: float, default: float) -> float:
    value = body.get(name)
    return default if value is None else check_number(name, value, low, high)


def check_number(name: str, value: object, low: float, high: float) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise wrong_type(name, "a number", value)
    if not low <= value <= high:
        raise wrong_value(name, f"a number from {low:g} to {high:g}", value)
    return float(value)


def read_bool(body: Body, name: str, default: bool = False) -> bool:
    value = body.get(name)
    return default if value is None else check_bool(name, value)


def check_bool(name: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise wrong_type(name, "a boolean", value)
    return value


def read_str(body: Body, name: str, max_chars: int) -> str | None:
    value = body.get(name)
    return None if value is None else check_str(name, value, max_chars)


def check_str(name: str, value: object, max_chars: int) -> str:
    if not isinstance(value, str):
        raise wrong_type(name, "a string", value)
    if len(value) > max_chars:
        message = (
            f"Invalid '{name}': expected at most {max_chars} characters, but got {len(value)}."
        )
        raise BadRequest(message, name, "string_above_max_length")
    return value


def read_object(body: Body, name: str) -> dict[str, Any] | None:
    value = body.get(name)
    return None if value is None else check_object(name, value)


def check_object(name: str, value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise wrong_type(name, "an object", value)
    return value


def read_list(body: Body, name: str, max_items: int) -> list[Any] | None:
    value = body.get(name)
    return None if value is None else check_list(name, value, max_items)


def check_list(name: str, value: object, max_items: int) -> list[Any]:
    if not isinstance(value, list):
        raise wrong_type(name, "an array", value)
    if len(value) > max_items:
        message = f"Invalid '{name}': expected at most {max_items} items, but got {len(value)}."
        raise BadRequest(message, name, "array_above_max_length")
    return value


def read_choice(body: Body, name: str, choices: Sequence[str]) -> str | None:
    value = body.get(name)
    if value is None:
        return None
    if not isinstance(value, str):
        raise wrong_type(name, "a string", value)
    if value not in choices:
        raise wrong_value(name, "one of " + ", ".join(repr(choice) for choice in choices), value)
    return value
