"""Page sizes as OpenAI's listings take them, and the list envelope they answer."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from services.router.core.errors import BadRequest

_SHOWN_CHARS = 80
_INTEGER = re.compile(r"-?[0-9]{1,18}")


def parse_limit(text: str | None, default: int, maximum: int) -> int:
    """0 is an empty page; a negative or larger one is refused in OpenAI's words."""
    if text is None or text == "":
        return default
    if not _INTEGER.fullmatch(text):
        raise BadRequest(
            f"Invalid 'limit': expected an integer, but got {text[:40]!r} instead.",
            "limit",
            "invalid_type",
        )
    value = int(text)
    if value > maximum:
        raise BadRequest(
            f"Invalid 'limit': integer above maximum value. Expected a value <= {maximum}, "
            f"but got {value} instead.",
            "limit",
            "integer_above_max_value",
        )
    if value < 0:
        raise BadRequest(
            "Invalid 'limit': integer below minimum value. Expected a value >= 0, "
            f"but got {value} instead.",
            "limit",
            "integer_below_min_value",
        )
    return value


def parse_count(name: str, text: str | None) -> int:
    """A number of things that went before; 0 if it is left out."""
    if not text:
        return 0
    if not _INTEGER.fullmatch(text) or int(text) < 0:
        raise BadRequest(
            f"Invalid '{name}': expected an integer from 0 on, but got {text[:40]!r} instead.",
            name,
            "invalid_value",
        )
    return int(text)


def parse_flag(name: str, text: str | None) -> bool:
    """`true` or `false`; false if it is left out."""
    if text not in (None, "", "true", "false"):
        raise BadRequest(
            f"Invalid '{name}': expected true or false, but got {text[:40]!r} instead.",
            name,
            "invalid_value",
        )
    return text == "true"


_TIME_ORDERED = re.compile(r"[0-9a-f]{28}")


def check_after(after: str, prefix: str) -> str:
    """The cursor of a listing in the order of ids: "" or an id with `prefix`.

    The object may be gone by now; a page goes on after its place. Raises BadRequest for what can
    be no id, instead of answering the page that some text happens to sort before.
    """
    if after and not (after.startswith(prefix) and _TIME_ORDERED.fullmatch(after[len(prefix) :])):
        raise bad_after(after)
    return after


def bad_after(after: str) -> BadRequest:
    return BadRequest(
        f"Invalid 'after': {after[:_SHOWN_CHARS]!r} is not the id of an object in this list. Give "
        "the last id of the page before.",
        "after",
        "invalid_value",
    )


def list_envelope(items: Sequence[dict[str, Any]], has_more: bool) -> dict[str, Any]:
    """`has_more` is never true on an empty page: the official client would stop silently."""
    return {
        "object": "list",
        "data": list(items),
        "first_id": items[0]["id"] if items else None,
        "last_id": items[-1]["id"] if items else None,
        "has_more": has_more and bool(items),
    }
