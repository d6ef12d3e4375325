"""Whether a running instance can answer a file."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Serving:
    """model: as `--model` had it; name: what requests call it; precision: of the weights."""

    model: str
    name: str
    precision: str


@dataclass(frozen=True, slots=True)
class Wanted:
    """model: a name that requests use; source: the same as `--model` has it, where it is known that
    it may be served under any name, else None. precision: None = any."""

    model: str
    source: str | None = None
    precision: str | None = None


def misfit(running: Serving, wanted: Wanted) -> str:
    """Why not, as "it serves this, not that"; empty if it can."""
    if wanted.model != running.name and wanted.source != running.model:
        return f"it serves the model {running.name!r}, not {wanted.model!r}"
    if wanted.precision not in (None, running.precision):
        return f"it serves {running.name!r} in {running.precision}, not in {wanted.precision}"
    return ""
