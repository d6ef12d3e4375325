"""Pieces are waited for one by one, not without end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from libs.clock import SystemClock
from services.router.timely import PACE, Pace, timely


class TooSlow(Exception):
    pass


async def test_pieces_come_through_in_order_and_end() -> None:
    async def source() -> AsyncIterator[bytes]:
        for number in range(3):
            yield bytes(number)

    assert [len(each) async for each in timely(source(), TooSlow())] == [0, 1, 2]


async def test_a_piece_that_does_not_come_is_an_error() -> None:
    never = asyncio.Event()

    async def source() -> AsyncIterator[bytes]:
        yield b"1"
        await never.wait()

    pieces = timely(source(), TooSlow(), Pace(idle_s=0.01))
    assert await anext(pieces) == b"1"
    with pytest.raises(TooSlow):
        await anext(pieces)


async def test_a_byte_now_and_then_is_too_slow_over_all() -> None:
    clock = SystemClock()

    async def source() -> AsyncIterator[bytes]:
        while True:
            await clock.sleep(0.001)
            yield b"."

    with pytest.raises(TooSlow):
        async for _ in timely(source(), TooSlow(), Pace(idle_s=30, grace_s=0.05, bytes_per_s=1e6)):
            pass


@pytest.mark.parametrize("mebibytes", [0, 1, 64, 200])
def test_a_slow_but_honest_line_is_waited_for_at_every_point(mebibytes: int) -> None:
    """1 MB/s, and pauses of ten seconds."""
    size = mebibytes << 20
    assert PACE.left_s(size, size / 1e6 + 10) >= 20 - 1e-9


def test_what_a_body_may_take_is_bounded_by_its_bytes() -> None:
    assert PACE.left_s(0, 0) == 30
    assert PACE.left_s(0, 31) == 0
    assert PACE.left_s(64 << 20, 1055) == 0
    assert PACE.left_s(64 << 20, 1050) == 4
