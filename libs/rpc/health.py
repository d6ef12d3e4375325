"""grpc.health.v1 with a Watch that ends when the server drains, so that a drain need not cut it.

States: NOT_SERVING from the start, SERVING and back by `set_serving`, NOT_SERVING for good after
`drain`. All service names of one server share one state. Owned by the event loop's thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

from grpc_health.v1 import health_pb2, health_pb2_grpc

from libs.errors import NotFound

_Response = health_pb2.HealthCheckResponse


class Health(health_pb2_grpc.HealthServicer):  # type: ignore[misc]  # its stubs say Any
    """Answers for "" (the whole server) and each of `service_names`."""

    def __init__(self, service_names: Sequence[str]) -> None:
        self._names = frozenset(service_names) | {""}
        self._serving = False
        self._draining = False
        self._changed: asyncio.Future[None] | None = None

    @property
    def serving(self) -> bool:
        return self._serving

    @property
    def draining(self) -> bool:
        return self._draining

    def set_serving(self, serving: bool) -> None:
        """Change the state and tell the watchers; without effect once draining."""
        if not self._draining and serving != self._serving:
            self._serving = serving
            self._notify()

    def drain(self) -> None:
        """NOT_SERVING for good; every Watch sends that and ends."""
        self._serving = False
        self._draining = True
        self._notify()

    async def Check(self, request: health_pb2.HealthCheckRequest, context: Any) -> Any:
        if request.service not in self._names:
            raise NotFound(
                f"This server has no service {request.service!r}.", "UNKNOWN_SERVICE", "service"
            )
        return _Response(status=self._status(request.service))

    async def Watch(
        self, request: health_pb2.HealthCheckRequest, context: Any
    ) -> AsyncIterator[Any]:
        last = None
        while True:
            status = self._status(request.service)
            if status != last:
                last = status
                yield _Response(status=status)
                continue  # the state may have changed while the message went out
            if self._draining:
                return
            await self._change()

    def _status(self, service: str) -> Any:
        if service not in self._names:
            return _Response.SERVICE_UNKNOWN
        return _Response.SERVING if self._serving else _Response.NOT_SERVING

    def _notify(self) -> None:
        if self._changed is not None:
            self._changed.set_result(None)
            self._changed = None

    async def _change(self) -> None:
        if self._changed is None:
            self._changed = asyncio.get_running_loop().create_future()
        await asyncio.shield(self._changed)
