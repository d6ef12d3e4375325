"""Whether a running instance can answer a file."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Serving:
    """A model, the name that requests use for it, and its precision as `--precision` has it."""

    model: str
    name: str
    precision: str | None
    """Of what is wanted: None = any."""


def misfit(running: Serving, wanted: Serving) -> str:
    """Why not, as "it serves this, not that"; empty if it can."""
    if running.name != wanted.name:
        return f"it serves the model {running.name!r}, not {wanted.name!r}"
    if wanted.model not in (running.name, running.model):
        return f"it serves {running.model!r} as {running.name!r}, not {wanted.model!r}"
    if wanted.precision not in (None, running.precision):
        return f"it serves {running.name!r} in {running.precision}, not in {wanted.precision}"
    return ""
