"""Every answer carries `x-request-id`, also those that fail before a handler is found."""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from services.router.identity import Maker

_KEY = "impala.request_id"


def request_id_of(scope: Scope) -> str:
    return str(scope[_KEY])


class RequestIds:
    """ASGI middleware."""

    def __init__(self, app: ASGIApp, maker: Maker) -> None:
        self._app = app
        self._maker = maker

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = f"req_{self._maker.token()}"
        scope[_KEY] = request_id

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = [*message.get("headers", []), (b"x-request-id", request_id.encode())]
                message = {**message, "headers": headers}
            await send(message)

        await self._app(scope, receive, send_with_id)
