"""A client's stream of requests that the server ends early keeps the server's status.

In grpc.aio a write that fails because the call has just ended sets the call's status to INTERNAL
("Internal error from Core") unless the real one has arrived already, and that is a race: one
refused upload in some was told so. Core always gives a call a status, so it is waited for instead.
"""

from __future__ import annotations

from typing import Any


class _Patient:
    """A call of grpc.aio's core that is told nothing of failed writes."""

    def __init__(self, call: Any) -> None:
        self._call = call

    def set_internal_error(self, _: str) -> None:
        """Without it the writer waits for the status, and raises that."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._call, name)


def keep_status(call: Any) -> Any:
    """`call`, just begun: a stream-unary or stream-stream one of grpc.aio."""
    call._cython_call = _Patient(call._cython_call)
    return call
