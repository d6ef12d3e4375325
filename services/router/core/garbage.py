"""Which objects nobody needs: by their keys and by the records that could name them.

An object is written first and named in a record afterwards, so one without a name may still get
one. It cannot any more where

* its run has ended (a terminal state never changes), or
* it is a segment of an epoch that is over: only a leader whose election key is there names any.

All else, and these too, are given a time of grace besides: see services/router/garbage.py.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass

_SEGMENT = re.compile(r"([0-9]{20})-[0-9]{8}")
"""Epoch and number, as libs.records.keys.segment_object writes them."""


@dataclass(frozen=True, slots=True)
class FileContent:
    account: str
    file_id: str


@dataclass(frozen=True, slots=True)
class Index:
    run_id: str


@dataclass(frozen=True, slots=True)
class Segment:
    run_id: str
    epoch: int


@dataclass(frozen=True, slots=True)
class Probe:
    """What a service wrote at its start, to see whether it may."""


@dataclass(frozen=True, slots=True)
class RunNames:
    """What a run's record says. segments: the keys that it names."""

    ended: bool
    segments: Collection[str]


Kind = FileContent | Index | Segment | Probe


def kind_of(key: str) -> Kind | None:
    """What the object is; None for one that no service writes, which is nobody's to delete."""
    match key.split("/"):
        case ["files", account, file_id]:
            return FileContent(account, file_id)
        case ["runs", run_id, "index"]:
            return Index(run_id)
        case ["runs", run_id, "segments", name]:
            written = _SEGMENT.fullmatch(name)
            return Segment(run_id, int(written[1])) if written else None
        case ["probes", _]:
            return Probe()
    return None


def is_needed(key: str, kind: Index | Segment, run: RunNames | None, leader_epoch: int) -> bool:
    """Whether the run's record names the object, or its leader may come to name it.

    run: None = there is no record; the index of a batch that is being validated has none yet, so
    whoever deletes looks for that. leader_epoch: of the run's fleet, 0 = nobody leads it now.
    """
    if run is None:
        return False
    if isinstance(kind, Index):
        return not run.ended
    return key in run.segments or (not run.ended and kind.epoch == leader_epoch)
