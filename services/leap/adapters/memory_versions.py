"""Versions in this process: the test seam of ports.VersionStore, with the same promises."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from services.leap.core.version import Version


class MemoryVersions:
    """`before_create` is called before each create, so that a test can be the faster publisher."""

    def __init__(self, before_create: Callable[[Version], object] | None = None) -> None:
        self.held: dict[tuple[str, int], Version] = {}
        self._before_create = before_create

    def add(self, version: Version) -> bool:
        """Another publisher's create."""
        taken = any(
            held.model == version.model
            and (held.seq == version.seq or held.manifest.digest == version.manifest.digest)
            for held in self.held.values()
        )
        if not taken:
            self.held[version.model, version.seq] = version
        return not taken

    async def find(self, model: str, digest: bytes) -> Version | None:
        for version in await self.list(model):
            if version.manifest.digest == digest:
                return version
        return None

    async def get(self, model: str, seq: int, *, with_tensors: bool) -> Version | None:
        version = self.held.get((model, seq))
        return version if version is None or with_tensors else version.without_tensors()

    async def newest(self, model: str) -> Version | None:
        return max(await self.list(model), key=lambda version: version.seq, default=None)

    async def list(self, model: str) -> Sequence[Version]:
        return [v.without_tensors() for v in self.held.values() if not model or v.model == model]

    async def create(self, version: Version) -> bool:
        if self._before_create is not None:
            self._before_create(version)
        return self.add(version)
