"""Registering under competition, against the in-memory store."""

from __future__ import annotations

import pytest

from libs.clock import ManualClock
from libs.errors import Aborted, InvalidArgument, NotFound
from services.leap.adapters.memory_versions import MemoryVersions
from services.leap.app import ATTEMPTS, LeapApp
from services.leap.core.manifest import Manifest
from services.leap.core.version import Replica, Version
from services.leap.tests.factories import manifest_of


class NoReplicas:
    def current(self) -> list[Replica]:
        return []


def app_on(store: MemoryVersions) -> LeapApp:
    return LeapApp(store, NoReplicas(), ManualClock(wall=1_700_000_000.25))


async def test_a_new_digest_gets_the_next_seq_and_a_known_one_its_own() -> None:
    app = app_on(MemoryVersions())
    seen = [await app.register(manifest_of(name)) for name in ("a", "b", "a", "c", "b")]
    assert [each.version.seq for each in seen] == [1, 2, 1, 3, 2]
    assert [each.created for each in seen] == [True, True, False, True, False]
    assert seen[0].version.created_unix_ms == 1_700_000_000_250


async def test_models_count_for_themselves() -> None:
    app = app_on(MemoryVersions())
    seqs = [(await app.register(manifest_of("a", model))).version.seq for model in ("x", "y")]
    assert seqs == [1, 1]


async def test_a_malformed_manifest_is_not_registered() -> None:
    store = MemoryVersions()
    with pytest.raises(InvalidArgument):
        await app_on(store).register(Manifest("m", b"", b""))
    assert not store.held


async def test_a_lost_race_for_a_seq_is_run_again() -> None:
    def faster(version: Version) -> None:
        if version.seq == 1:
            store.add(Version(1, manifest_of("rival"), 0))

    store = MemoryVersions(before_create=faster)
    registration = await app_on(store).register(manifest_of("mine"))
    assert (registration.version.seq, registration.created) == (2, True)


async def test_a_race_lost_to_the_same_digest_is_won() -> None:
    store = MemoryVersions(before_create=lambda v: store.add(Version(1, manifest_of("same"), 0)))
    registration = await app_on(store).register(manifest_of("same"))
    assert (registration.version.seq, registration.created) == (1, False)


async def test_five_lost_races_are_aborted_and_leave_nothing() -> None:
    def always_faster(version: Version) -> None:
        store.add(Version(version.seq, manifest_of(f"rival-{version.seq}"), 0))

    store = MemoryVersions(before_create=always_faster)
    with pytest.raises(Aborted) as caught:
        await app_on(store).register(manifest_of("mine"))
    assert caught.value.reason == "SEQ_RACE"
    assert [seq for _, seq in store.held] == list(range(1, ATTEMPTS + 1))


async def test_a_version_is_found_by_seq_and_the_newest_by_0() -> None:
    app = app_on(MemoryVersions())
    for name in ("a", "b"):
        await app.register(manifest_of(name))
    assert (await app.get("smollm2-135m", 1, with_tensors=True)).manifest == manifest_of("a")
    newest = await app.get("smollm2-135m", 0, with_tensors=True)
    assert newest.manifest == manifest_of("b")
    assert (await app.get("smollm2-135m", 0, with_tensors=False)).manifest.tensors == ()


@pytest.mark.parametrize(
    ("model", "seq", "reason"),
    [("other", 0, "UNKNOWN_MODEL"), ("smollm2-135m", 9, "UNKNOWN_VERSION")],
)
async def test_what_is_not_there_is_named(model: str, seq: int, reason: str) -> None:
    app = app_on(MemoryVersions())
    await app.register(manifest_of("a"))
    with pytest.raises(NotFound, match=model) as caught:
        await app.get(model, seq, with_tensors=False)
    assert caught.value.reason == reason


async def test_the_status_of_an_unknown_model_is_not_found() -> None:
    app = app_on(MemoryVersions())
    assert await app.status("") == ()
    with pytest.raises(NotFound):
        await app.status("other")
