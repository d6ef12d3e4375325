"""An HTTP proxy that fails as servers and networks do: where a test says, as often as it says.

One request a connection: what is asked next comes over a new one. Heads and bodies are passed on as
they are, so signatures of the request stay valid.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Literal, Self

HOST = "127.0.0.1"
_CHUNK = 1 << 14
_HEAD_BYTES = 1 << 16

Where = Literal["request", "response"]


@dataclass(frozen=True, slots=True)
class Request:
    method: str
    target: str
    """Path and query."""


@dataclass(slots=True)
class Rule:
    """Which requests it hits, and what becomes of them; the first that matches does."""

    method: str = ""
    """Empty = any."""
    contains: str = ""
    """A part of path and query."""
    times: int | None = None
    """Requests it still hits; None = all."""
    answer: int | None = None
    """The status that is answered without asking the server."""
    body: str = "<Error><Code>Injected</Code><Message>A fault.</Message></Error>"
    """Of that answer; XML."""
    headers: str = ""
    """Further ones of that answer, each with its line's end."""
    delay_s: float = 0.0
    """Before the server is asked."""
    bytes_per_s: float | None = None
    """Of the bodies, either way."""
    cut: Where | None = None
    """The connection breaks in the middle of that body."""
    cut_after: int = 0
    """Bytes of the body that still pass."""
    lose_answer: bool = False
    """The server has done what was asked, and the answer never comes."""
    flip: bool = False
    """One bit of the answer's body is another, at its middle."""
    hits: int = 0

    def takes(self, request: Request) -> bool:
        if self.times is not None and self.hits >= self.times:
            return False
        return self.method in ("", request.method) and self.contains in request.target


class _CutError(Exception):
    """The connection is to break now."""


class HttpFaults:
    """`async with HttpFaults(port) as proxy`: requests to `proxy.url` go on to that port of
    loopback, but for what `rules` say."""

    def __init__(self, target: int, listen: int = 0) -> None:
        self.rules: list[Rule] = []
        self.seen: list[Request] = []
        self._target = target
        self._port = listen
        self._serving: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, HOST, self._port)
        self._port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.close()
        for task in self._serving:
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self._port}"

    def add(self, rule: Rule) -> Rule:
        self.rules.append(rule)
        return rule

    def clear(self) -> None:
        self.rules.clear()

    def count(self, method: str, contains: str = "") -> int:
        """Requests seen so far."""
        return sum(each.method == method and contains in each.target for each in self.seen)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)
        try:
            await self._serve(reader, writer)
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, _CutError):
            writer.transport.abort()
        finally:
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        method, target, _ = head.split(b"\r\n", 1)[0].decode().split(" ")
        request = Request(method, target)
        self.seen.append(request)
        rule = next((each for each in self.rules if each.takes(request)), Rule())
        rule.hits += 1
        if rule.answer is not None:
            await _answer(reader, head, writer, rule)
            return
        await asyncio.sleep(rule.delay_s)
        onward_reader, onward = await asyncio.open_connection(HOST, self._target)
        try:
            onward.write(head)
            await _pass_on(reader, onward, _length(head, 0), rule, "request")
            answer = await onward_reader.readuntil(b"\r\n\r\n")
            if rule.lose_answer:
                raise _CutError("the answer is lost")
            writer.write(_closing(answer))
            length = 0 if method == "HEAD" else _length(answer, None)
            await _pass_on(onward_reader, writer, length, rule, "response")
        finally:
            onward.close()


async def _answer(
    reader: asyncio.StreamReader, head: bytes, writer: asyncio.StreamWriter, rule: Rule
) -> None:
    body = rule.body.encode()
    await _pass_on(reader, None, _length(head, 0), Rule(), "request")
    writer.write(
        f"HTTP/1.1 {rule.answer} Injected\r\n{rule.headers}content-type: application/xml\r\n"
        f"content-length: {len(body)}\r\nconnection: close\r\n\r\n".encode()
        + body
    )
    await writer.drain()


async def _pass_on(
    source: asyncio.StreamReader,
    target: asyncio.StreamWriter | None,
    length: int | None,
    rule: Rule,
    where: Where,
) -> None:
    """So many bytes of a body, or all to its end; without a target they are only read."""
    passed = 0
    change = _flipper(length) if rule.flip and where == "response" else None
    while length is None or passed < length:
        wanted = _CHUNK if length is None else min(_CHUNK, length - passed)
        if rule.cut == where:
            if passed >= rule.cut_after:
                raise _CutError("cut")
            wanted = min(wanted, rule.cut_after - passed)
        data = await source.read(wanted)
        if not data:
            if length is None:
                break
            raise asyncio.IncompleteReadError(b"", length)
        if target is not None:
            target.write(change(passed, data) if change else data)
            await target.drain()
        passed += len(data)
        if rule.bytes_per_s is not None:
            await asyncio.sleep(len(data) / rule.bytes_per_s)
    if target is not None:
        await target.drain()


def _flipper(length: int | None) -> Callable[[int, bytes], bytes]:
    at = (length or 0) // 2

    def change(start: int, data: bytes) -> bytes:
        if not start <= at < start + len(data):
            return data
        changed = bytearray(data)
        changed[at - start] ^= 1
        return bytes(changed)

    return change


def _length(head: bytes, otherwise: int | None) -> int | None:
    for line in head.split(b"\r\n")[1:]:
        name, _, value = line.partition(b":")
        if name.strip().lower() == b"content-length":
            return int(value)
    return otherwise


def _closing(head: bytes) -> bytes:
    """The head with the word that no other request may come over this connection."""
    lines = [
        line
        for line in head.removesuffix(b"\r\n\r\n").split(b"\r\n")
        if not line.lower().startswith(b"connection:")
    ]
    with contextlib.suppress(IndexError):
        lines.insert(1, b"connection: close")
    return b"\r\n".join(lines) + b"\r\n\r\n"
