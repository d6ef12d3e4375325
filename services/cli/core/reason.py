"""Why a service could not start, from the last lines of its log."""

from __future__ import annotations

from collections.abc import Sequence

import orjson

GRAVE = ("error", "panic", "fatal")


def reason_of(service: str, lines: Sequence[str]) -> str | None:
    """What it said itself: our services in one sentence after their name, etcd in its log's JSON.

    lines: in order. None if no line is of either kind.
    """
    prefix = f"{service}: "
    for line in reversed(lines):
        if line.startswith(prefix):
            return line.removeprefix(prefix)
        if said := _of_etcd(line):
            return said
    return None


def _of_etcd(line: str) -> str | None:
    """The message and the error of a line of JSON that tells of a grave one."""
    try:
        entry = orjson.loads(line) if line.startswith("{") else None
    except orjson.JSONDecodeError:
        return None
    if not isinstance(entry, dict) or entry.get("level") not in GRAVE:
        return None
    parts = [str(entry[key]) for key in ("msg", "error") if entry.get(key)]
    return f"{': '.join(parts)}." if parts else None
