"""When an answer is wanted: completion windows of batches and of single requests."""

from __future__ import annotations

import re

from services.router.core.errors import BadRequest

UNLIMITED = "unlimited"
MAX_HOURS = 24 * 365

_HOURS = re.compile(r"([0-9]{1,6})h")

ASAP, STANDARD, FLEX, BATCH = "asap", "standard", "flex", "batch"

_TIERS = {
    "auto": STANDARD,
    "default": STANDARD,
    "scale": STANDARD,
    "standard": STANDARD,
    "priority": ASAP,
    "fast": ASAP,
    "asap": ASAP,
    "flex": FLEX,
    "batch": BATCH,
}


def completion_window_s(text: object) -> int | None:
    """Seconds of a batch's window; None for "unlimited". Refuses anything but `<n>h`."""
    if text == UNLIMITED:
        return None
    match = _HOURS.fullmatch(text) if isinstance(text, str) else None
    if match is None or not 1 <= int(match[1]) <= MAX_HOURS:
        raise BadRequest(
            f'\'completion_window\' must be "24h", another "<n>h" of 1 to {MAX_HOURS} hours, '
            'or "unlimited".',
            "completion_window",
            "invalid_completion_window",
        )
    return int(match[1]) * 3600


def request_window(header: str | None, service_tier: object) -> str:
    """The window of a single request: `x-impala-window`, else `service_tier`, else standard."""
    if header:
        if header.lower() not in (ASAP, STANDARD, FLEX, BATCH):
            raise BadRequest(
                "The header x-impala-window must be asap, standard, flex or batch.",
                "x-impala-window",
                "invalid_window",
            )
        return header.lower()
    if service_tier is None:
        return STANDARD
    if not isinstance(service_tier, str) or service_tier not in _TIERS:
        raise BadRequest(
            f"'service_tier' must be one of {', '.join(sorted(_TIERS))}.",
            "service_tier",
            "invalid_value",
        )
    return _TIERS[service_tier]
