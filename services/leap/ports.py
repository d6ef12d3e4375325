"""What Leap needs of the world around it."""

from collections.abc import Sequence
from typing import Protocol

from services.leap.core.version import Replica, Version


class VersionStore(Protocol):
    """Where versions are agreed on. A version never changes once it is created."""

    async def find(self, model: str, digest: bytes) -> Version | None:
        """The version of that digest, without tensors."""
        ...

    async def get(self, model: str, seq: int, *, with_tensors: bool) -> Version | None: ...

    async def newest(self, model: str) -> Version | None:
        """The version of the highest seq, without tensors."""
        ...

    async def list(self, model: str) -> Sequence[Version]:
        """All of a model, or of all models with "", without tensors, in no order."""
        ...

    async def create(self, version: Version) -> bool:
        """Write `version` if neither its seq nor its digest is taken; False when one is. With
        True it is there, whole; an error may leave it there or not, never half."""
        ...


class Replicas(Protocol):
    """The live model servers, as of now."""

    def current(self) -> Sequence[Replica]: ...


class WallClock(Protocol):
    """Unix seconds; libs.clock.Clock has it."""

    def time(self) -> float: ...
