"""Registering versions and telling about them. Holds no state: etcd does."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from libs.errors import Aborted, NotFound
from services.leap.core.manifest import Manifest
from services.leap.core.version import ModelStatus, Page, Version, page_of, statuses
from services.leap.ports import Replicas, VersionStore, WallClock

log = logging.getLogger(__name__)

ATTEMPTS = 5


@dataclass(frozen=True, slots=True)
class Registration:
    version: Version
    created: bool


class LeapApp:
    """Any number of these may run on one etcd: seqs are given by compare-and-set."""

    def __init__(self, store: VersionStore, replicas: Replicas, clock: WallClock) -> None:
        self._store = store
        self._replicas = replicas
        self._clock = clock

    async def register(self, manifest: Manifest) -> Registration:
        """The version of the manifest's digest, created with the next seq if it is new.

        Aborted after five lost races for a seq; safe to call again, as after any error, because
        the digest decides.
        """
        manifest.check()
        for _ in range(ATTEMPTS):
            known = await self._store.find(manifest.model, manifest.digest)
            if known is not None:
                return Registration(known, created=False)
            newest = await self._store.newest(manifest.model)
            seq = newest.seq + 1 if newest else 1
            version = Version(seq, manifest, round(self._clock.time() * 1000))
            if await self._store.create(version):
                log.info("registered", extra={"model": manifest.model, "seq": seq})
                return Registration(version.without_tensors(), created=True)
        raise Aborted(
            f"Other publishers of {manifest.model} took each seq that was tried; call again.",
            "SEQ_RACE",
        )

    async def get(self, model: str, seq: int, *, with_tensors: bool) -> Version:
        """`seq` 0 = the newest. NotFound names model and seq."""
        if seq == 0:
            newest = await self._store.newest(model)
            if newest is None:
                raise NotFound(f"{model} has no registered version.", "UNKNOWN_MODEL", "model")
            if not with_tensors:
                return newest
            seq = newest.seq
        version = await self._store.get(model, seq, with_tensors=with_tensors)
        if version is None:
            raise NotFound(f"{model} has no version {seq}.", "UNKNOWN_VERSION", "seq")
        return version

    async def page(self, model: str, limit: int, after: str) -> Page:
        return page_of(await self._store.list(model), limit, after)

    async def status(self, model: str) -> tuple[ModelStatus, ...]:
        """NotFound when a model is named that has neither a version nor a replica."""
        found = statuses(await self._store.list(model), self._replicas.current(), model)
        if model and not found:
            raise NotFound(
                f"{model} has no registered version and no replica.", "UNKNOWN_MODEL", "model"
            )
        return found
