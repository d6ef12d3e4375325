"""What the model server needs of the world around it."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from services.modelserver.core.report_log import ReportLog
from services.modelserver.herd.core.plan import Lookup
from services.modelserver.herd.engine.step import FetchedBlock, StoredBlock


class LowerTier(Protocol):
    """Where KV blocks go when they leave the pool, and may come back from. Never waited for by a
    step; every failure is a miss."""

    def offer(self, blocks: Sequence[StoredBlock]) -> None:
        """Store them some time; drops what it has no room to hold meanwhile."""
        ...

    async def fetch(self, lookup: Lookup) -> list[FetchedBlock]:
        """The verified blocks of the lookup's keys from the first on, without a gap."""
        ...


@dataclass(frozen=True, slots=True)
class FinishedStep:
    """What is reported of a step; plain values, ready for the wire."""

    step_id: str
    grant_id: str
    self_placed: bool
    account: str
    job_id: str
    run_id: str
    line: int
    trace_id: str
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    finish_reason: str
    prompt_hashes: bytes
    output_hashes: bytes
    engine_s: float
    queue_s: float
    first_token_s: float
    total_s: float
    finished_unix_ms: int
    weight_seq: int


class ReportSource(Protocol):
    """Where finished steps wait to be reported."""

    reports: ReportLog[FinishedStep]
    reported: asyncio.Event
    """Set when there is something new to report."""

    @property
    def busy_s(self) -> float:
        """Time inside engine steps since the start."""
        ...

    @property
    def uptime_s(self) -> float: ...


@dataclass(slots=True)
class ServedWeights:
    """The version in the pool. `seq` is 0 until Leap has registered it."""

    model: str
    seq: int
    digest: bytes
