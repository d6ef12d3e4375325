"""A key that lines with the same beginning share, so that a run can hand them out together.

Taken from the request's JSON and not from its rendering: Index must be fast and needs no
tokenizer. Equal keys are a hint for order only.
"""

from __future__ import annotations

import hashlib
from typing import Any

import orjson

KEY_BYTES = 16
HEAD_CHARS = 1024


def prefix_key(body: dict[str, Any]) -> bytes:
    """16 bytes over the tools and the first 1,024 characters of messages or prompt."""
    digest = hashlib.blake2b(digest_size=KEY_BYTES, person=b"line-prefix")
    tools = body.get("tools")
    if tools:
        digest.update(orjson.dumps(tools, option=orjson.OPT_SORT_KEYS))
    digest.update(b"\0")
    digest.update(_head(body).encode("utf-8", "surrogatepass"))
    return digest.digest()


def custom_id_hash(custom_id: str) -> bytes:
    """8 bytes."""
    return hashlib.blake2b(custom_id.encode("utf-8", "surrogatepass"), digest_size=8).digest()


def _head(body: dict[str, Any]) -> str:
    messages = body.get("messages")
    if not isinstance(messages, list):
        return _text(body.get("prompt"))[:HEAD_CHARS]
    head = ""
    for message in messages:
        if len(head) >= HEAD_CHARS:
            break
        if isinstance(message, dict):
            head += f"{message.get('role')}\0{_text(message.get('content'))}\0"
    return head[:HEAD_CHARS]


def _text(value: object) -> str:
    if isinstance(value, str):
        return value
    return "" if value is None else orjson.dumps(value).decode()
