"""The object store under a cluster, and how it can fail: a folder, or S3 behind a proxy."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Protocol

from libs.testing.frozen import frozen, mounted
from libs.testing.http_faults import HttpFaults, Rule
from libs.testing.s3 import BUCKET, S3Process, environment
from tests.robustness.faults import Kind

NO_ENV: Mapping[str, str] = MappingProxyType({})


class Store(Protocol):
    """url, env: what a service needs to use it. kinds: of faults that it can have."""

    url: str
    env: Mapping[str, str]
    kinds: frozenset[Kind]

    def failing(self, kind: Kind) -> contextlib.AbstractAsyncContextManager[None]: ...


class FolderStore:
    """Use it with `async with`: as root, the folder is a mount of its own meanwhile."""

    kinds = frozenset({Kind.FROZEN, Kind.DISK_FULL})

    def __init__(self, folder: Path) -> None:
        self.url = str(folder)
        self.env = NO_ENV
        self._folder = folder
        self._stack = contextlib.ExitStack()

    async def __aenter__(self) -> FolderStore:
        self._stack.enter_context(mounted(self._folder))
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._stack.close()

    @contextlib.asynccontextmanager
    async def failing(self, kind: Kind) -> AsyncIterator[None]:
        assert kind is Kind.FROZEN
        async with frozen(self._folder):
            yield


class S3Store:
    """An S3 server that nobody kills: its objects are in its memory."""

    kinds = frozenset({Kind.STORE_ERRORS, Kind.STORE_SLOW, Kind.STORE_CUT})

    def __init__(self) -> None:
        self.url = f"s3://{BUCKET}/robustness"
        self.env = NO_ENV
        self._stack = contextlib.AsyncExitStack()

    async def __aenter__(self) -> S3Store:
        server = S3Process()
        await asyncio.to_thread(server.__enter__)
        self._stack.push(server.__exit__)
        self._proxy = await self._stack.enter_async_context(HttpFaults(server.port))
        self.env = environment(self._proxy.url)
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._stack.aclose()

    @contextlib.asynccontextmanager
    async def failing(self, kind: Kind) -> AsyncIterator[None]:
        rules = [self._proxy.add(rule) for rule in _rules(kind)]
        try:
            yield
        finally:
            for rule in rules:
                self._proxy.rules.remove(rule)


def _rules(kind: Kind) -> Sequence[Rule]:
    match kind:
        case Kind.STORE_ERRORS:
            return [Rule(answer=500)]
        case Kind.STORE_SLOW:
            return [Rule(delay_s=0.3, bytes_per_s=30_000)]
        case Kind.STORE_CUT:
            return list(_cuts())
    raise ValueError(f"{kind} is no fault of S3")


def _cuts() -> Iterator[Rule]:
    """Some requests break off before, within and after what they ask for; others go well."""
    yield Rule("PUT", lose_answer=True, times=4)
    yield Rule("PUT", cut="request", cut_after=50, times=6)
    yield Rule("GET", cut="response", cut_after=50, times=8)
    yield Rule("POST", lose_answer=True, times=3)
