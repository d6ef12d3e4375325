"""HTTP/1.1 as uvicorn speaks it, with what is malformed told in the envelope and heads bounded.

What a parser keeps before it has a head, a chunk or a trailer complete is bounded too: a header
that never ends would otherwise fill the memory.
"""

from __future__ import annotations

from http import HTTPStatus

import orjson
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from services.router.failures import INVALID, Failure

MAX_HEAD_BYTES = 64 << 10
"""Of the request line and all headers; and of anything else that the parser must collect."""


class HeadTooLarge(Exception):
    """The request line and headers are larger than `MAX_HEAD_BYTES`."""


class Protocol(HttpToolsProtocol):
    """One connection. What is refused here is the connection's end."""

    _collected = 0
    """Bytes since the parser last completed anything."""
    _too_large = False

    def data_received(self, data: bytes) -> None:
        before, self._collected = self._collected, -1
        super().data_received(data)
        if self._collected >= 0:
            return
        self._collected = before + len(data)
        if self._collected > MAX_HEAD_BYTES and not self.transport.is_closing():
            self._too_large = True
            self.send_400_response("")

    def on_headers_complete(self) -> None:
        self._collected = 0
        size = len(self.url)
        size += sum(len(name) + len(value) + len(b": \r\n") for name, value in self.headers)
        if size > MAX_HEAD_BYTES:
            self._too_large = True
            raise HeadTooLarge
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._collected = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._collected = 0
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        """uvicorn's name for what it calls where the parser gave up."""
        cycle = self.cycle
        if cycle is None or cycle.response_complete or not cycle.response_started:
            # Else an answer is under way, and this one would be taken for a part of it.
            self.transport.write(_answer(_TOO_LARGE if self._too_large else _MALFORMED))
        self.transport.close()


_MALFORMED = Failure(
    400,
    INVALID,
    "What was sent is not a well-formed HTTP/1.1 request.",
    code="malformed_http",
)
_TOO_LARGE = Failure(
    431,
    INVALID,
    f"The request line and headers are larger than {MAX_HEAD_BYTES} bytes.",
    code="headers_too_large",
)


def _answer(failure: Failure) -> bytes:
    body = orjson.dumps(failure.envelope())
    head = (
        f"HTTP/1.1 {failure.status} {HTTPStatus(failure.status).phrase}\r\n"
        "content-type: application/json\r\n"
        f"content-length: {len(body)}\r\n"
        "connection: close\r\n\r\n"
    )
    return head.encode() + body
