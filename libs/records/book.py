"""What a fleet's leader has booked: step reports are acknowledged once this is written.

The sums of active runs live here, because they change with every finished step while a run's
record changes with every segment; the record carries a copy, and the final sums.
"""

import msgspec


class RunUseRecord(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Sums over the step reports of one active run; engine seconds."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    reasoning_tokens: int = 0
    busy_engine_s: float = 0.0
    idle_engine_s: float = 0.0
    self_placed_steps: int = 0


class FleetBook(msgspec.Struct, kw_only=True):
    fleet: str
    epoch: int
    """Of the leader that wrote it."""
    booked: dict[str, int] = {}
    """Server incarnation -> every report up to this sequence is in the sums."""
    clocks: dict[str, tuple[float, float]] = {}
    """Server incarnation -> (uptime, busy) seconds up to which idle time is charged."""
    busy: dict[str, tuple[float, float]] = {}
    """Server incarnation -> (reported, charged) busy seconds."""
    runs: dict[str, RunUseRecord] = {}
