"""What a client sends in pieces, for as long as it goes on sending, and fast enough.

A body holds memory while it comes. Without a least rate a byte now and then would hold it for ever.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable
from dataclasses import dataclass
from typing import Protocol, TypeVar


@dataclass(frozen=True, slots=True)
class Pace:
    """The slowest client that is still waited for. Only waiting counts, not what is done with a
    piece meanwhile."""

    idle_s: float = 30.0
    """Seconds without a piece."""
    grace_s: float = 30.0
    """Seconds in all that a body may take beyond those for its bytes."""
    bytes_per_s: float = 64 << 10
    """A tenth of a slow mobile line; 64 MiB may take 18 minutes."""

    def left_s(self, size: int, waited_s: float) -> float:
        """Seconds that the next piece may take, after so many bytes and seconds; 0 = none."""
        in_all = self.grace_s + size / self.bytes_per_s
        return max(0.0, min(self.idle_s, in_all - waited_s))

    def __str__(self) -> str:
        return (
            f"nothing for {self.idle_s:g} seconds, or less than {self.bytes_per_s:g} bytes a "
            "second over all"
        )


PACE = Pace()


class Sized(Protocol):
    def __len__(self) -> int: ...


T = TypeVar("T", bound=Sized)


async def timely(
    source: AsyncIterable[T], too_slow: Exception, pace: Pace = PACE
) -> AsyncGenerator[T, None]:
    """The source's pieces. Raises `too_slow` where they come too slowly."""
    items = aiter(source)
    now = asyncio.get_running_loop().time
    size, waited_s = 0, 0.0
    while True:
        began = now()
        try:
            async with asyncio.timeout(pace.left_s(size, waited_s)):
                item = await anext(items)
        except StopAsyncIteration:
            return
        except TimeoutError:
            raise too_slow from None
        waited_s += now() - began
        size += len(item)
        yield item
