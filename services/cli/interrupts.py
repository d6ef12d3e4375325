"""Ctrl-C and SIGTERM as a call that the phase of a command chooses."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from types import TracebackType
from typing import Self

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupts:
    """`with Interrupts() as interrupts: interrupts.call(what)`: every signal calls it, on the event
    loop. A signal that came before anything was named is kept for the first that is."""

    def __init__(self) -> None:
        self._call: Callable[[], None] | None = None
        self.count = 0

    def __enter__(self) -> Self:
        loop = asyncio.get_running_loop()
        for number in SIGNALS:
            loop.add_signal_handler(number, self._on_signal)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        loop = asyncio.get_running_loop()
        for number in SIGNALS:
            loop.remove_signal_handler(number)

    def call(self, what: Callable[[], None]) -> None:
        first, self._call = self._call is None, what
        if first and self.count:
            what()

    def _on_signal(self) -> None:
        self.count += 1
        if self._call is not None:
            self._call()
