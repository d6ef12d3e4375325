"""Rendering and tokenizing off the event loop, for those who still wait for it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

from services.router.core.params import GenerationRequest
from services.router.text_model import Prompt

THREADS = 2


class Prompts(Protocol):
    """What is asked of a text model here."""

    def prompts(
        self, request: GenerationRequest, is_wanted: Callable[[], bool] = ..., /
    ) -> list[Prompt]: ...


class Tokenizing:
    """Owner of the small thread pool that long texts are tokenized on.

    Work of a caller who left (whose task was cancelled) is not begun; of a request with many
    prompts that is under way, no further prompt is.
    """

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="tokenize")

    async def prompts(self, model: Prompts, request: GenerationRequest) -> list[Prompt]:
        """The model's prompts of the request. Raises what the model does."""
        loop = asyncio.get_running_loop()
        left = threading.Event()
        try:
            # A cancelled caller's future is cancelled with it, which takes it out of the queue.
            return await loop.run_in_executor(
                self._pool, model.prompts, request, lambda: not left.is_set()
            )
        finally:
            left.set()

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
