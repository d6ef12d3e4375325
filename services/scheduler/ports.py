"""What the scheduler needs of other services; etcd and the object store come from `libs`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol

from services.scheduler.core.ledger import Clocks
from services.scheduler.core.run import Line, Outcome
from services.scheduler.core.server import Server
from services.scheduler.core.usage import NO_USAGE, Usage


@dataclass(frozen=True, slots=True)
class ServerReport:
    """A model server's state at one moment."""

    server: Server
    clocks: Clocks


class ModelServers(Protocol):
    def watch(self, address: str) -> AsyncIterator[ServerReport]:
        """The state now and on every change. Ends by raising ImpalaError when the server cannot be
        reached. Leave it through `aclosing`."""
        ...


@dataclass(frozen=True, slots=True)
class IndexAsk:
    run_id: str
    epoch: int
    account: str
    input_object: str
    endpoint: str
    job_id: str
    """Empty = found from the lines' model."""
    index_object: str
    input_bytes: int = 0
    """As noted at the file's upload; 0 = unknown."""
    input_digest: str = ""


@dataclass(frozen=True, slots=True)
class FileFault:
    """What is wrong with a batch file; `line` is None for the file as a whole."""

    code: str
    message: str
    param: str | None
    line: int | None


@dataclass(frozen=True, slots=True)
class Indexed:
    """`faults` not empty = the file fails and nothing was indexed."""

    lines: int
    job_id: str
    model: str
    faults: tuple[FileFault, ...] = ()
    index_digest: str = ""


@dataclass(frozen=True, slots=True)
class ExecuteAsk:
    run_id: str
    batch_id: str
    epoch: int
    fleet: str
    account: str
    job_id: str
    model: str
    endpoint: str
    input_object: str
    deadline_unix_ms: int
    """0 = none."""


@dataclass(frozen=True, slots=True)
class LineAnswer:
    line: int
    outcome: Outcome
    record: bytes = b""
    """The output or error line; empty for RETRY and CANCELLED."""
    usage: Usage = NO_USAGE
    """Of its step; nothing when no step ran to its end."""
    trace_id: str = ""
    total_s: float = 0.0
    """From hand-out to answer."""
    custom_id: str = ""
    reason: str = ""
    retry_after_s: float = 0.0


class LineStream(Protocol):
    """One router at work on one run. `send` and `cancel` never wait."""

    def send(self, lines: Sequence[Line]) -> None: ...

    def cancel(self, lines: Sequence[int]) -> None: ...

    def answers(self) -> AsyncIterator[list[LineAnswer]]:
        """Ends by raising ImpalaError when the stream breaks; returns when the router ended it."""
        ...


class BatchRouters(Protocol):
    async def index(self, address: str, ask: IndexAsk) -> Indexed:
        """Raises ImpalaError: NotFound and InvalidArgument are final, others may be tried again."""
        ...

    def execute(self, address: str, ask: ExecuteAsk) -> AbstractAsyncContextManager[LineStream]:
        """Leaving the context cancels what is unanswered."""
        ...
