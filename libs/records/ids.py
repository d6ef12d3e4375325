"""Identifiers of objects users see. Time-ordered where listings page over them."""

import re

_TIME_HEX = 12  # 48 bits of milliseconds: good until the year 10889.
_RANDOM_HEX = 16
_JOB_HEX = 8

ACCOUNT_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
LOCAL_ACCOUNT = "local"
"""Account of a start without keys."""


def time_ordered(prefix: str, now_ms: int, random: bytes) -> str:
    """`prefix` + creation time + 8 random bytes, hex; sorts by time within one prefix."""
    if len(random) < _RANDOM_HEX // 2:
        raise ValueError("an id needs 8 random bytes")
    return f"{prefix}{now_ms:0{_TIME_HEX}x}{random[: _RANDOM_HEX // 2].hex()}"


def file_id(now_ms: int, random: bytes) -> str:
    return time_ordered("file-", now_ms, random)


def batch_id(now_ms: int, random: bytes) -> str:
    return time_ordered("batch_", now_ms, random)


def run_id(now_ms: int, random: bytes) -> str:
    return time_ordered("run-", now_ms, random)


def job_id(random: bytes) -> str:
    """`job-xxxxxxxx`: short enough to be read out; creation must be a compare-and-set."""
    return f"job-{random[: _JOB_HEX // 2].hex()}"


def fleet_name(model: str, precision: str) -> str:
    """The fleet that serves one model in one configuration; safe as one etcd path segment."""
    return re.sub(r"[^A-Za-z0-9._-]", "_", f"{model}.{precision}")
