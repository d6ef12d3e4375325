"""One request as it entered: whose, where from, and until when its answer is of use."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Trace:
    """What the client says of its trace; all of it may be empty."""

    trace_id: str = ""
    parent_trace_id: str = ""
    tool: str = ""
    """The tool whose answer this step continues."""


@dataclass(frozen=True, slots=True)
class BatchOrigin:
    """The line of a run that a call executes."""

    run_id: str
    line: int
    job_id: str
    fleet: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """`body` is the parsed JSON of the endpoint's request."""

    request_id: str
    account: str
    endpoint: str
    body: dict[str, Any]
    within_s: float
    """Seconds until the answer is useless."""
    window: str | None = None
    """As the header or the batch says; None: `service_tier` decides."""
    trace: Trace = field(default_factory=Trace)
    origin: BatchOrigin | None = None
    deadline_unix_ms: int = 0
    """0 = none."""
