"""A service's process: event loop, signals, exit codes.

    def main() -> None:
        config = parse_config(KvStoreConfig, sys.argv[1:], prog="kvstore")
        run_service(lambda shutdown: serve(config, shutdown), name="kvstore")

Exit codes: 0 after a drain, 1 when it could not start or broke, 2 for a wrong configuration, 128 +
signal when a second signal cut the drain short.

Child processes are spawned, never forked: a fork copies gRPC's threads' locks and hangs.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Awaitable, Callable
from typing import Any, NoReturn

import uvloop

from libs.config.known import unknown_variables
from libs.errors import ImpalaError, StartupError
from libs.lasting import BROKEN

log = logging.getLogger(__name__)


class Shutdown:
    """Set once, when the process should stop; from then on the service drains."""

    def __init__(self) -> None:
        self._event = asyncio.Event()
        self.reason = ""

    @property
    def requested(self) -> bool:
        return self._event.is_set()

    def request(self, reason: str) -> None:
        """Ask for the drain; the first reason stays."""
        if not self._event.is_set():
            self.reason = reason
            self._event.set()

    async def wait(self) -> None:
        await self._event.wait()


def run_service(main: Callable[[Shutdown], Awaitable[None]], name: str = "impala") -> NoReturn:
    """Run `main` to its end on uvloop and exit the process with its code.

    `main` should return soon after `shutdown` is requested (SIGTERM, SIGINT). A StartupError or
    ImpalaError that it raises is one sentence on stderr; anything else is a traceback.
    """
    multiprocessing.set_start_method("spawn", force=True)
    _collect_seldom()
    for sentence in unknown_variables(os.environ):
        log.warning("%s", sentence)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        try:
            runner.run(_supervised(main))
            code = 0
        except Exception as failure:  # noqa: BLE001  # the process's last resort
            code = _report(name, failure)
    sys.stderr.flush()
    if any(thread.daemon for thread in threading.enumerate()):
        # Nothing is left to do, and a daemon thread that is inside foreign code (a tokenizer being
        # read, gRPC's poller) may crash the process when the interpreter is taken down around it.
        sys.stdout.flush()
        os._exit(code)
    raise SystemExit(code)


def _collect_seldom() -> None:
    """A young collection every 700 objects is 6 % of a busy service's time, and finds nothing: what
    a request leaves behind is freed by its counts. What the modules made is never garbage."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


async def _supervised(main: Callable[[Shutdown], Awaitable[None]]) -> None:
    shutdown = Shutdown()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, _on_signal, shutdown, number)
    broken = _stop_when_broken(loop, shutdown)
    await main(shutdown)
    if broken:
        raise StartupError(f"stopped: {', '.join(map(repr, broken))} broke; the log has the error")


def _stop_when_broken(loop: asyncio.AbstractEventLoop, shutdown: Shutdown) -> list[str]:
    """The names of the lasting tasks that break, from now on; the first requests the shutdown."""
    broken: list[str] = []

    def handle(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if BROKEN not in context:
            loop.default_exception_handler(context)
            return
        broken.append(context[BROKEN])
        log.critical(context["message"], exc_info=context["exception"])
        shutdown.request(context["message"])

    loop.set_exception_handler(handle)
    return broken


def _on_signal(shutdown: Shutdown, number: signal.Signals) -> None:
    if shutdown.requested:
        log.warning("second signal: stopping at once", extra={"signal": number.name})
        sys.stderr.flush()
        os._exit(128 + number)
    log.info("draining", extra={"signal": number.name})
    shutdown.request(number.name)


def _report(name: str, failure: Exception) -> int:
    plain = _plain(failure)
    if isinstance(plain, StartupError | ImpalaError):
        print(f"{name}: {plain}", file=sys.stderr)
        log.debug("where it came from", exc_info=failure)
        return plain.exit_code if isinstance(plain, StartupError) else 1
    log.critical("stopped by an unexpected error", exc_info=failure)
    return 1


def _plain(failure: Exception) -> Exception:
    """The one error inside the groups that TaskGroups wrap around it, or the group itself."""
    while isinstance(failure, ExceptionGroup) and len(failure.exceptions) == 1:
        failure = failure.exceptions[0]
    return failure
