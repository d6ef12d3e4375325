"""uvicorn on a socket that is bound already, in the process's own event loop."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import errno
import socket
import struct
import sys
from collections.abc import Iterator

import uvicorn
from starlette.types import ASGIApp

from libs.errors import StartupError
from libs.rpc import ServerTls
from libs.rpc.frame import is_wildcard
from services.router.http.protocol import Protocol

BACKLOG = 1024
KEEP_ALIVE_S = 75
TICK_S = 0.1
FAREWELL_S = 0.25
"""Of each of the two moments before connections without a request are closed."""
_ACCEPT_REST_S = 0.05
"""The event loop comes round many times in it."""
_SO_ATTACH_FILTER = 26  # of Linux
_BPF_RET = 0x06


class _Server(uvicorn.Server):
    """Signals belong to the process's own handlers."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._stop = asyncio.Event()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def main_loop(self) -> None:
        """Ticks as uvicorn does, but ends at once when asked to."""
        ticks = 0
        while not await self.on_tick(ticks):
            ticks += 1
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(TICK_S):
                    await self._stop.wait()

    def stop(self) -> None:
        self.should_exit = True
        self._stop.set()


class HttpServer:
    """`start`, then `drain`. The port is bound at once, so that `port` is known."""

    def __init__(
        self,
        app: ASGIApp,
        host: str,
        port: int,
        *,
        tls: ServerTls | None = None,
        drain_s: float,
    ) -> None:
        """Raises StartupError where the port cannot be had or certificates cannot be used."""
        self._socket = _bind(host, port)
        self.port: int = self._socket.getsockname()[1]
        self._host = host
        self._scheme = "http" if tls is None else "https"
        self.url = self._url(host)
        config = uvicorn.Config(
            app,
            http=Protocol,
            ws="none",
            lifespan="off",
            log_config=None,
            log_level="warning",
            access_log=False,
            server_header=False,
            backlog=BACKLOG,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=max(1, round(drain_s)),
            ssl_context_factory=None if tls is None else lambda *_: tls.context(),
        )
        self._server = _Server(config)
        self._farewell_s = min(FAREWELL_S, drain_s / 10)
        self._task: asyncio.Task[None] | None = None

    def url_on(self, host: str) -> str:
        """How others reach it: bound to every address, by this machine's `host`."""
        return self._url(host) if is_wildcard(self._host) else self.url

    def _url(self, host: str) -> str:
        shown = f"[{host}]" if ":" in host else host
        return f"{self._scheme}://{shown}:{self.port}"

    async def start(self) -> None:
        """Returns once connections are accepted."""
        self._task = asyncio.create_task(self._server.serve(sockets=[self._socket]))
        while not self._server.started:
            if self._task.done():
                self._task.result()
                raise StartupError("The HTTP server ended while it started.")
            await asyncio.sleep(0.005)

    async def drain(self) -> None:
        """Lets running requests end within the grace, then cuts them.

        No request that has been sent is dropped. For a moment connections are still accepted, while
        every answer ends its connection (`farewell`); then for another one those accepted may send
        what they came for. Only then are connections closed that have nothing under way.
        """
        if self._task is not None and not self._task.done():
            await asyncio.sleep(self._farewell_s)
            take_no_more(self._socket)
            await asyncio.sleep(_ACCEPT_REST_S)
            for listening in self._server.servers:
                listening.close()
            await asyncio.sleep(self._farewell_s)
        self._server.stop()
        if self._task is not None:
            await self._task
        self._socket.close()


def take_no_more(listening: socket.socket) -> None:
    """Drops what comes to connect from now on, and keeps those that wait to be accepted.

    Closing would reset these, whose requests may be sent already. So accept them, then close.
    Linux alone has such a filter: a classic BPF program of one instruction, "take 0 bytes".
    """
    if sys.platform != "linux":
        return
    return_0 = ctypes.create_string_buffer(struct.pack("HBBI", _BPF_RET, 0, 0, 0))
    program = struct.pack("HP", 1, ctypes.addressof(return_0))
    with contextlib.suppress(OSError):
        listening.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, program)


def _bind(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind((host.strip("[]"), port))
        bound.listen(BACKLOG)
    except OSError as error:
        bound.close()
        if error.errno == errno.EADDRINUSE:
            raise StartupError(
                f"The HTTP port {port} on {host} is in use: stop what listens there or give "
                "another --http-port (0 picks a free one)."
            ) from None
        raise StartupError(
            f"Cannot listen for HTTP on port {port} of {host}: {error.strerror}."
        ) from None
    bound.setblocking(False)
    return bound
