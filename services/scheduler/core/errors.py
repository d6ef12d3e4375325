"""What a caller of the scheduler can be told.

ImpalaError
├── NotFound            NoFleet, NoDecision, NoRun
├── FailedPrecondition  NotLeader
├── ResourceExhausted   QueueFull
├── DeadlineExceeded    TooLate
└── Unavailable         NoServers, StateUnavailable
"""

from __future__ import annotations

from libs.errors import (
    DeadlineExceeded,
    FailedPrecondition,
    NotFound,
    ResourceExhausted,
    Unavailable,
)

LEADER_KEY = "impala-leader"


class NoFleet(NotFound):
    def __init__(self, what: str, field: str) -> None:
        super().__init__(f"No fleet serves the {what}.", "NO_FLEET", field)


class NoDecision(NotFound):
    def __init__(self) -> None:
        super().__init__(
            "No placement of that step or trace is remembered here: never made, or long ago.",
            "NO_DECISION",
        )


class NoRun(NotFound):
    def __init__(self, run_id: str) -> None:
        super().__init__(f"There is no run {run_id!r}.", "NO_RUN", "run_id")


class NotLeader(FailedPrecondition):
    """`leader`: host:port of the scheduler that leads; empty while nobody does."""

    def __init__(self, fleet: str, leader: str) -> None:
        where = f"; {leader} does" if leader else " and nobody does yet"
        super().__init__(f"This scheduler does not lead the fleet {fleet}{where}.", "NOT_LEADER")
        if leader:
            self.hints = ((LEADER_KEY, leader),)


class QueueFull(ResourceExhausted):
    def __init__(self, fleet: str, waiting: int, retry_after_s: float) -> None:
        super().__init__(
            f"{waiting} steps wait for the fleet {fleet} already.",
            "QUEUE_FULL",
            retry_after_s=retry_after_s,
        )


class NoServers(Unavailable):
    def __init__(self, fleet: str, retry_after_s: float) -> None:
        super().__init__(
            f"The fleet {fleet} has no live server.", "NO_SERVERS", retry_after_s=retry_after_s
        )


class StateUnavailable(Unavailable):
    def __init__(self) -> None:
        super().__init__(
            "The cluster's state cannot be reached now.", "CLUSTER_UNAVAILABLE", retry_after_s=1.0
        )


class TooLate(DeadlineExceeded):
    def __init__(self) -> None:
        super().__init__("The step was not granted before its deadline.", "STEP_DEADLINE")
