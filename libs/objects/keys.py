"""Which keys exist: `folder/folder/name`, plain enough for every store and file system."""

from __future__ import annotations

import re

from libs.objects.errors import InvalidKey

MAX_KEY_CHARS = 900
"""Below S3's 1,024 bytes, with room for a bucket prefix."""

MAX_SEGMENT_CHARS = 200

# A segment never starts with a dot: this shuts out `.`, `..` and the local staging folder.
_SEGMENT = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._=+@-]*")


def check_key(key: str) -> str:
    """Returns the key, or raises `InvalidKey` saying what is wrong with it."""
    if not key:
        raise InvalidKey(key, "it is empty")
    if len(key) > MAX_KEY_CHARS:
        raise InvalidKey(key, f"it is longer than {MAX_KEY_CHARS} characters")
    for segment in key.split("/"):
        _check_segment(key, segment)
    return key


def is_key(text: str) -> bool:
    try:
        check_key(text)
    except InvalidKey:
        return False
    return True


def check_prefix(prefix: str) -> str:
    """A folder (`runs/abc`, with or without the last slash) or "" for all; without that slash."""
    return check_key(prefix.removesuffix("/")) if prefix else prefix


def _check_segment(key: str, segment: str) -> None:
    if segment in ("", ".", ".."):
        why = "it is absolute or has an empty, '.' or '..' part"
    elif len(segment) > MAX_SEGMENT_CHARS:
        why = f"a part is longer than {MAX_SEGMENT_CHARS} characters"
    elif not _SEGMENT.fullmatch(segment):
        why = f"the part {segment!r} has characters other than letters, digits and ._=+@-"
    else:
        return
    raise InvalidKey(key, why)
