"""Pieces are waited for one by one, not without end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from services.router.timely import timely


class TooSlow(Exception):
    pass


async def test_pieces_come_through_in_order_and_end() -> None:
    async def source() -> AsyncIterator[int]:
        for number in range(3):
            yield number

    assert [each async for each in timely(source(), TooSlow())] == [0, 1, 2]


async def test_a_piece_that_does_not_come_is_an_error() -> None:
    never = asyncio.Event()

    async def source() -> AsyncIterator[int]:
        yield 1
        await never.wait()

    pieces = timely(source(), TooSlow(), 0.01)
    assert await anext(pieces) == 1
    with pytest.raises(TooSlow):
        await anext(pieces)
