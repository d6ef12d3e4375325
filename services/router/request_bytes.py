"""A bound on the bytes of requests that one process holds, so that clients cannot fill its memory.

Bytes are taken as they come, not as they are announced: a client that announces much and sends
nothing shuts nobody out. They are given back when the request has been answered, because until
then its text and tokens are in use. What is parsed from a body takes some times its bytes.
"""

from __future__ import annotations

from types import TracebackType
from typing import Self

from libs.errors import Unavailable

RETRY_AFTER_S = 1.0


class TooManyBytes(Unavailable):
    """Other requests hold the memory that this one needs."""

    def __init__(self, limit: int) -> None:
        super().__init__(
            f"The requests under way hold the {limit} bytes that this server has for them: send "
            "this one again in a moment.",
            "REQUEST_BYTES_EXHAUSTED",
            None,
            RETRY_AFTER_S,
        )
        self._limit = limit

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self._limit,)


class RequestBytes:
    """The process's budget. One writer: the event loop's thread."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.held = 0

    def hold(self) -> Hold:
        """One request's share, to be used with `with`."""
        return Hold(self)


class Hold:
    """What one request holds; given back on leaving."""

    def __init__(self, budget: RequestBytes) -> None:
        self._budget = budget
        self._held = 0

    @property
    def limit(self) -> int:
        """The most that a request can ever hold."""
        return self._budget.limit

    def check(self, size: int) -> None:
        """Raises TooManyBytes where `size` more could not be taken now; takes nothing."""
        if self._budget.held + size > self._budget.limit:
            raise TooManyBytes(self._budget.limit)

    def take(self, size: int) -> None:
        """Raises TooManyBytes, and then has taken nothing."""
        self.check(size)
        self._held += size
        self._budget.held += size

    def at_least(self, size: int) -> None:
        """Takes what is missing to `size`. Raises TooManyBytes."""
        if size > self._held:
            self.take(size - self._held)

    def release(self) -> None:
        self._budget.held -= self._held
        self._held = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()
