"""A router that drains ends each connection with its answer, so that clients ask another one."""

from __future__ import annotations

from collections.abc import Callable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

CLOSE = (b"connection", b"close")


class Farewell:
    """Around the whole application."""

    def __init__(self, app: ASGIApp, is_draining: Callable[[], bool]) -> None:
        self._app = app
        self._is_draining = is_draining

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def closing(message: Message) -> None:
            if message["type"] == "http.response.start" and self._is_draining():
                message = {**message, "headers": [*message.get("headers", ()), CLOSE]}
            await send(message)

        await self._app(scope, receive, closing)
