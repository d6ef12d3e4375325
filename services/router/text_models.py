"""Text models by the source that servers name, each loaded once, off the event loop."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable

from libs.errors import StartupError, Unavailable
from services.router.fleets import Fleets
from services.router.text_model import TextModel

log = logging.getLogger(__name__)

Load = Callable[[str], TextModel]
"""Blocking: the source's text model, or StartupError."""

RETRY_AFTER_S = 5.0
WARM_S = 60.0


class TextModels:
    """Loads are shared by all who wait for the same source; a failed one is tried again."""

    def __init__(self, load: Load) -> None:
        self._load = load
        self._tasks: dict[str, asyncio.Task[TextModel]] = {}

    async def load(self, source: str) -> TextModel:
        """Raises Unavailable, with the reason, where the source cannot be had on this machine."""
        task = self._tasks.get(source)
        if task is None or (task.done() and (task.cancelled() or task.exception() is not None)):
            task = asyncio.create_task(_in_daemon_thread(self._load, source))
            self._tasks[source] = task
        try:
            # A caller that leaves does not stop the load for the others.
            return await asyncio.shield(task)
        except StartupError as error:
            log.error("a tokenizer cannot be loaded", extra={"source": source, "why": str(error)})
            raise Unavailable(str(error), "NO_TOKENIZER", None, RETRY_AFTER_S) from error

    async def keep_warm(self, fleets: Fleets) -> None:
        """Loads what servers name as soon as they do, so that no request waits for it. Never
        returns; what cannot be loaded is told by the request that needs it."""
        while True:
            for info in fleets.models().values():
                try:
                    await self.load(info.source)
                except Unavailable:
                    continue
                except Exception:
                    log.exception("a tokenizer cannot be loaded", extra={"source": info.source})
            await fleets.changed(WARM_S)

    async def aclose(self) -> None:
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)


async def _in_daemon_thread(load: Load, source: str) -> TextModel:
    """Not `asyncio.to_thread`: the loop's end waits for its threads, and a fetch or conversion may
    take minutes that a drain does not have."""
    loop = asyncio.get_running_loop()
    loaded: asyncio.Future[TextModel] = loop.create_future()

    def settle(result: TextModel | BaseException) -> None:
        if loaded.done():
            return
        if isinstance(result, BaseException):
            loaded.set_exception(result)
        else:
            loaded.set_result(result)

    def run() -> None:
        result: TextModel | BaseException
        try:
            result = load(source)
        except BaseException as error:  # noqa: BLE001  # carried over to who waits
            result = error
        try:
            loop.call_soon_threadsafe(settle, result)
        except RuntimeError:
            log.info("a tokenizer came too late", extra={"source": source})

    threading.Thread(target=run, name=f"load {source}", daemon=True).start()
    return await loaded
