"""Where downloads are kept between runs."""

from __future__ import annotations

from collections.abc import Mapping
from os import environ
from pathlib import Path


def cache_dir(env: Mapping[str, str] = environ) -> Path:
    """$IMPALA_CACHE, else ~/.cache/impala. Not created here."""
    named = env.get("IMPALA_CACHE")
    return Path(named).expanduser() if named else Path.home() / ".cache" / "impala"
