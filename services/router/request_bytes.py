"""A bound on the bytes of requests that one process holds, so that clients cannot fill its memory.

Bytes are taken as they come, not as they are announced: a client that announces much and sends
nothing shuts nobody out. No owner (an account, or without keys an address) holds more than half,
so that one client's slow bodies leave the others room. Bytes are given back when the request has
been answered, because until then its text and tokens are in use. What is parsed from a body takes
some times its bytes.
"""

from __future__ import annotations

import functools
from collections import Counter
from types import TracebackType
from typing import Self

from libs.errors import Unavailable

RETRY_AFTER_S = 1.0


class TooManyBytes(Unavailable):
    """Other requests hold the memory that this one needs."""

    def __init__(self, limit: int, *, is_share: bool = False) -> None:
        who, whom = ("Your requests", "you") if is_share else ("The requests", "them")
        super().__init__(
            f"{who} under way hold the {limit} bytes that this server has for {whom}: send this "
            "one again in a moment.",
            "REQUEST_BYTES_EXHAUSTED",
            None,
            RETRY_AFTER_S,
        )
        self._limit, self._is_share = limit, is_share

    def __reduce__(self) -> tuple[object, ...]:
        return functools.partial(type(self), is_share=self._is_share), (self._limit,)


class RequestBytes:
    """The process's budget. One writer: the event loop's thread."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.share = limit // 2
        """The most that one owner may hold."""
        self._by_owner: Counter[str] = Counter()

    @property
    def held(self) -> int:
        return self._by_owner.total()

    def hold(self, owner: str) -> Hold:
        """What one request of the owner's will hold, to be used with `with`."""
        return Hold(self, owner)

    def check(self, owner: str, size: int) -> None:
        """Raises TooManyBytes where `size` more could not be taken now; takes nothing."""
        if self._by_owner[owner] + size > self.share:
            raise TooManyBytes(self.share, is_share=True)
        if self.held + size > self.limit:
            raise TooManyBytes(self.limit)

    def move(self, owner: str, size: int) -> None:
        """Takes, or with less than 0 gives back."""
        self._by_owner[owner] += size
        if not self._by_owner[owner]:
            del self._by_owner[owner]


class Hold:
    """What one request holds; given back on leaving."""

    def __init__(self, budget: RequestBytes, owner: str) -> None:
        self.owner = owner
        self._budget = budget
        self._held = 0

    @property
    def limit(self) -> int:
        """The most that a request can ever hold."""
        return self._budget.share

    def check(self, size: int) -> None:
        """Raises TooManyBytes where `size` more could not be taken now; takes nothing."""
        self._budget.check(self.owner, size)

    def take(self, size: int) -> None:
        """Raises TooManyBytes, and then has taken nothing."""
        self.check(size)
        self._held += size
        self._budget.move(self.owner, size)

    def at_least(self, size: int) -> None:
        """Takes what is missing to `size`. Raises TooManyBytes."""
        if size > self._held:
            self.take(size - self._held)

    def release(self) -> None:
        self._budget.move(self.owner, -self._held)
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
