"""What no record names, and no leader can come to name."""

from __future__ import annotations

import pytest

from services.router.core.garbage import (
    FileContent,
    Index,
    Kind,
    Probe,
    RunNames,
    Segment,
    is_needed,
    kind_of,
)

SEGMENT = "runs/run-1/segments/00000000000000000007-00000003"


@pytest.mark.parametrize(
    ("key", "kind"),
    [
        ("files/ann/file-1", FileContent("ann", "file-1")),
        ("runs/run-1/index", Index("run-1")),
        (SEGMENT, Segment("run-1", 7)),
        ("probes/0af3", Probe()),
    ],
)
def test_what_services_write_is_known_by_its_key(key: str, kind: Kind) -> None:
    assert kind_of(key) == kind


@pytest.mark.parametrize(
    "key",
    [
        "cluster",
        "files/ann",
        "files/ann/file-1/more",
        "runs/run-1",
        "runs/run-1/notes",
        "runs/run-1/segments/7-3",
        "runs/run-1/segments/x-3",
        "runs/run-1/segments/3",
        "weights/model",
        "kv/0af3",
        "ledger/1",
    ],
)
def test_what_nobody_here_writes_is_nobody_s_to_delete(key: str) -> None:
    assert kind_of(key) is None


@pytest.mark.parametrize(
    ("run", "leader_epoch", "needed"),
    [
        (RunNames(False, {SEGMENT}), 7, True),
        (RunNames(False, {SEGMENT}), 9, True),  # a new leader goes on from it
        (RunNames(True, {SEGMENT}), 0, True),
        (RunNames(False, set()), 7, True),  # its leader may be about to name it
        (RunNames(False, set()), 9, False),  # who wrote it is fenced
        (RunNames(False, set()), 0, False),
        (RunNames(True, set()), 7, False),
        (None, 7, False),
    ],
)
def test_a_segment_is_needed_while_it_is_named_or_its_leader_leads(
    run: RunNames | None, leader_epoch: int, needed: bool
) -> None:
    assert is_needed(SEGMENT, Segment("run-1", 7), run, leader_epoch) is needed


@pytest.mark.parametrize(
    ("run", "needed"), [(RunNames(False, ()), True), (RunNames(True, ()), False), (None, False)]
)
def test_an_index_is_needed_until_its_run_ends(run: RunNames | None, needed: bool) -> None:
    assert is_needed("runs/run-1/index", Index("run-1"), run, 0) is needed
