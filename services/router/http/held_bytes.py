"""Every request has a hold on the process's request bytes, given back when it is answered."""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from services.router.access import Access
from services.router.request_bytes import Hold, RequestBytes

_KEY = "impala.hold"


def hold_of(scope: Scope) -> Hold:
    hold = scope[_KEY]
    assert isinstance(hold, Hold)
    return hold


class HeldBytes:
    """ASGI middleware."""

    def __init__(self, app: ASGIApp, budget: RequestBytes, access: Access) -> None:
        self._app = app
        self._access = access
        self._budget = budget

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._budget.hold(self._owner(scope)) as hold:
            scope[_KEY] = hold
            await self._app(scope, receive, send)

    def _owner(self, scope: Scope) -> str:
        headers = Headers(scope=scope)
        host = (scope.get("client") or ("", 0))[0]
        return self._access.owner(headers.get("authorization"), headers.get("x-api-key"), host)
