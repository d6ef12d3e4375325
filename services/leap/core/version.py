"""Registered versions: their order, pages of them, and what a model serves."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from libs.errors import InvalidArgument
from services.leap.core.manifest import Manifest

DEFAULT_LIMIT = 100
MAX_LIMIT = 10_000


class State(Enum):
    REGISTERED = "registered"  # known by digest; its bytes are where it is served
    SEALED = "sealed"  # bytes durable in the object store
    RETIRED = "retired"  # bytes no longer held


@dataclass(frozen=True, slots=True)
class Version:
    """`seq` is from 1 and monotone per model; the pair (model, digest) has one seq for ever."""

    seq: int
    manifest: Manifest
    created_unix_ms: int
    state: State = State.REGISTERED

    @property
    def model(self) -> str:
        return self.manifest.model

    @property
    def page_id(self) -> str:
        """What a listing's `after` names."""
        return f"{self.model}/{self.seq}"

    def without_tensors(self) -> Version:
        return replace(self, manifest=replace(self.manifest, tensors=()))


@dataclass(frozen=True, slots=True)
class Page:
    versions: tuple[Version, ...]
    has_more: bool


@dataclass(frozen=True, slots=True)
class Replica:
    """A live model server, as it last said of itself."""

    member_id: str
    model: str
    state: str
    applied_seq: int  # 0 = not registered yet
    applied_digest: bytes


@dataclass(frozen=True, slots=True)
class ModelStatus:
    model: str
    serving: Version | None  # newest committed; None when only replicas know the model
    replicas: tuple[Replica, ...]


def page_of(versions: Iterable[Version], limit: int, after: str) -> Page:
    """By model, newest first within one; `limit` 0 means 100; `after` is a page_id, which need not
    exist any more. InvalidArgument for a limit or cursor that is none."""
    if not 0 <= limit <= MAX_LIMIT:
        raise InvalidArgument(f"page.limit must be 0 to {MAX_LIMIT}.", "BAD_LIMIT", "page.limit")
    ordered = sorted(versions, key=_order)
    if after:
        cursor = _cursor(after)
        ordered = [version for version in ordered if _order(version) > cursor]
    size = limit or DEFAULT_LIMIT
    return Page(tuple(ordered[:size]), len(ordered) > size)


def statuses(
    versions: Iterable[Version], replicas: Sequence[Replica], model: str
) -> tuple[ModelStatus, ...]:
    """What each model serves, by name; `model` empty = all that have a version or a replica.

    A version is registered by a server that serves it, so the newest is the committed one.
    """
    newest: dict[str, Version] = {}
    for version in versions:
        known = newest.get(version.model)
        if known is None or version.seq > known.seq:
            newest[version.model] = version
    names = sorted({*newest, *(replica.model for replica in replicas)})
    return tuple(
        ModelStatus(name, newest.get(name), tuple(r for r in replicas if r.model == name))
        for name in names
        if not model or name == model
    )


def _order(version: Version) -> tuple[str, int]:
    return version.model, -version.seq


def _cursor(after: str) -> tuple[str, int]:
    model, _, seq = after.rpartition("/")
    if not model or not seq.isascii() or not seq.isdecimal():
        raise InvalidArgument(
            f"page.after is {after!r}; it must be the last_id of a page, model/seq.",
            "BAD_CURSOR",
            "page.after",
        )
    return model, -int(seq)
