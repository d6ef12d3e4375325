"""Loading tokenizers beside requests: shared, tried again, and never in the way of an end."""

from __future__ import annotations

import asyncio
import threading
from typing import cast

import pytest

from libs.errors import StartupError, Unavailable
from services.router.text_model import TextModel
from services.router.text_models import TextModels

MODEL = cast(TextModel, object())


class Loader:
    """Loads when it is let; fails as often as told."""

    def __init__(self, failures: int = 0) -> None:
        self.calls = 0
        self.failures = failures
        self.let = threading.Event()

    def __call__(self, source: str) -> TextModel:
        self.calls += 1
        self.let.wait(30)
        if self.calls <= self.failures:
            raise StartupError(f"no {source} here")
        return MODEL


async def test_those_who_wait_for_one_source_share_its_load() -> None:
    loader = Loader()
    models = TextModels(loader)
    waiting = [asyncio.create_task(models.load("a")) for _ in range(5)]
    loader.let.set()
    assert await asyncio.gather(*waiting) == [MODEL] * 5
    assert loader.calls == 1


async def test_a_load_that_failed_is_told_and_tried_again() -> None:
    loader = Loader(failures=1)
    loader.let.set()
    models = TextModels(loader)
    with pytest.raises(Unavailable, match="no a here"):
        await models.load("a")
    assert await models.load("a") is MODEL


async def test_a_caller_that_leaves_does_not_stop_the_load() -> None:
    loader = Loader()
    models = TextModels(loader)
    leaving = asyncio.create_task(models.load("a"))
    staying = asyncio.create_task(models.load("a"))
    await asyncio.sleep(0)
    leaving.cancel()
    loader.let.set()
    assert await staying is MODEL


def test_a_load_that_takes_for_ever_does_not_hold_up_the_end_of_the_loop() -> None:
    loader = Loader()

    async def begin_and_leave() -> None:
        models = TextModels(loader)
        begun = asyncio.create_task(models.load("a"))
        await asyncio.sleep(0)
        await models.aclose()
        with pytest.raises(asyncio.CancelledError):
            await begun

    asyncio.run(begin_and_leave())  # returns although the load has not
    assert not loader.let.is_set()
    loader.let.set()
