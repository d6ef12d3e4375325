"""A body that trickles in is given up, and what it held is given back."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.requests import Request

from libs.clock import SystemClock
from services.router.access import Access
from services.router.http.body import BodyTooSlow, read_body
from services.router.http.held_bytes import HeldBytes
from services.router.request_bytes import RequestBytes
from services.router.timely import Pace


async def test_a_byte_now_and_then_is_408_and_holds_nothing_afterwards() -> None:
    clock, budget = SystemClock(), RequestBytes(1 << 20)
    most_held = 0

    async def receive() -> dict[str, Any]:
        nonlocal most_held
        await clock.sleep(0.001)
        most_held = max(most_held, budget.held)
        return {"type": "http.request", "body": b"{", "more_body": True}

    async def app(scope: Any, receive: Any, send: Any) -> None:
        pace = Pace(idle_s=30, grace_s=0.1, bytes_per_s=1e6)
        await read_body(Request(scope, receive), 1 << 20, pace)

    async def send(message: Any) -> None:
        raise AssertionError(message)

    scope = {"type": "http", "headers": [], "client": ("192.0.2.1", 5)}
    with pytest.raises(BodyTooSlow) as caught:
        await HeldBytes(app, budget, Access(None))(scope, receive, send)
    assert caught.value.status == 408
    assert "1e+06 bytes a second" in caught.value.message
    assert most_held > 0
    assert budget.held == 0
