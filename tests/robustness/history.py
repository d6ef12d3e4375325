"""What clients were told, in the order they were told it. Times are seconds of one clock."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tests.robustness.faults import Fault


@dataclass(frozen=True, slots=True)
class Line:
    """A result line, byte for byte, without its newline."""

    text: str
    is_error: bool


@dataclass(frozen=True, slots=True)
class Created:
    """The batch was promised."""

    at: float
    batch: str


@dataclass(frozen=True, slots=True)
class Polled:
    """The batch object as a router answered it."""

    at: float
    batch: str
    status: str
    total: int
    completed: int
    failed: int


@dataclass(frozen=True, slots=True)
class Read:
    """Recorded results from the (after + 1)-th on, in one call. Without an error at its end it is
    whole: all that was recorded then. known: how many the client had seen when it called."""

    at: float
    batch: str
    after: int
    lines: tuple[Line, ...]
    known: int = 0
    whole: bool = True


@dataclass(frozen=True, slots=True)
class Usage:
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Delivered:
    """What the client got at last: both files, and the usage that the batch object states."""

    at: float
    batch: str
    lines: tuple[Line, ...]
    usage: Usage


@dataclass(frozen=True, slots=True)
class Unclear:
    """An answer that no client can act on: a 500."""

    at: float
    request: str
    answer: str


@dataclass(frozen=True, slots=True)
class Injected:
    at: float
    fault: Fault


Event = Created | Polled | Read | Delivered | Unclear | Injected


@dataclass(frozen=True, slots=True)
class Expected:
    """What a batch must come to. answers: custom_id -> the text answered, None for a line that must
    end as an error. within_s: from the promise to the end. cancelled: a cancel was asked for; it
    may have come too late, and lines without an answer may end as cancelled. expires: its window is
    so short that it may expire once a clock has jumped, with the lines that had no answer."""

    answers: Mapping[str, str | None]
    within_s: float
    cancelled: bool = False
    expires: bool = False


@dataclass(slots=True)
class History:
    """One writer: the recorder."""

    events: list[Event] = field(default_factory=list)
    expected: dict[str, Expected] = field(default_factory=dict)
    ended_at: float = 0.0
    """When the last look was taken."""

    def of(self, batch: str) -> list[Event]:
        return [
            e for e in self.events if not isinstance(e, Injected | Unclear) and e.batch == batch
        ]
