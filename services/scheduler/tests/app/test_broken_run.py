"""How a run ends that can never go on: its files name every line, its counts are those of its
files, and what its owner is told names no object."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest

from libs.cluster.client import EtcdClient
from libs.objects import InvalidKey, ObjectStore
from libs.records import keys
from libs.records.batch import BatchRecord, RunRecord
from services.scheduler.testing import Submitted, lines_of
from services.scheduler.tests.app.harness import World, eventually, scheduler_member, world

LINES = [line for n in range(20) for line in (f"ok-{n}", f"bad-{n}")]

Damage = Callable[[ObjectStore, str], Awaitable[None]]


async def scribble(objects: ObjectStore, key: str) -> None:
    await objects.put(key, b'{"line":1,"kind":"output"')


async def cut_after_a_line(objects: ObjectStore, key: str) -> None:
    lines = (await objects.get(key)).splitlines(keepends=True)
    await objects.put(key, b"".join(lines[:-1]))


async def change_a_letter(objects: ObjectStore, key: str) -> None:
    """It is as long as before and can be read as before."""
    data = await objects.get(key)
    assert b'"id": "' in data
    await objects.put(key, data.replace(b'"id": "', b'"ie": "', 1))


async def delete(objects: ObjectStore, key: str) -> None:
    await objects.delete(key)


async def with_three_segments(w: World, objects: ObjectStore) -> tuple[Submitted, RunRecord]:
    """A run whose first leader is gone after some 15 of 40 lines."""
    async with scheduler_member(w.client, objects, "first"):
        w.router.allow = 5
        submitted = await w.submitter.submit(lines_of(LINES))
        for recorded in (5, 10, 15):
            run = await w.recorded(submitted, recorded)
            w.router.allow = 5
    run = await w.run(submitted)
    assert len(run.segments) >= 3
    return submitted, run


async def assert_files_and_counts_agree(
    w: World, batch: BatchRecord, run: RunRecord
) -> list[dict[str, Any]]:
    """The lines of the error file."""
    outputs = await w.custom_ids(batch.output_file_id)
    errors = await w.lines(batch.error_file_id)
    assert sorted(outputs + [error["custom_id"] for error in errors]) == sorted(LINES)
    assert all(custom_id.startswith("ok-") for custom_id in outputs)
    assert (run.completed, run.failed, run.total) == (len(outputs), len(errors), 40)
    lost = [error for error in errors if (error["error"] or {}).get("code") == "run_failed"]
    assert len(lost) == run.unanswered
    return errors


def assert_owner_is_told(batch: BatchRecord, run: RunRecord) -> None:
    assert batch.status == "failed" and batch.failed_at
    assert [error.code for error in batch.errors] == ["run_failed"]
    message = batch.errors[0].message
    assert run.error == message and message.endswith(".")
    assert run.id not in message and "/" not in message


@pytest.mark.parametrize("damage", [scribble, cut_after_a_line, change_a_letter, delete])
async def test_a_damaged_segment_is_not_trusted_and_the_others_are_kept(
    client: EtcdClient, objects: ObjectStore, damage: Damage
) -> None:
    async with world(client, objects) as w:
        submitted, before = await with_three_segments(w, objects)
        await damage(objects, before.segments[1].object)
        async with scheduler_member(client, objects, "second"):
            batch = await w.ended(submitted)
        run = await w.run(submitted)
        assert_owner_is_told(batch, run)
        await assert_files_and_counts_agree(w, batch, run)
        assert 0 < run.completed < before.completed
        readable = sum(ref.lines for ref in before.segments) - before.segments[1].lines
        assert run.total - run.unanswered == readable
        assert await client.get(keys.file_ref(submitted.input_file_id, submitted.batch_id)) is None


async def test_with_no_segment_left_every_line_is_in_the_error_file(
    client: EtcdClient, objects: ObjectStore
) -> None:
    async with world(client, objects) as w:
        submitted, before = await with_three_segments(w, objects)
        for ref in before.segments:
            await objects.delete(ref.object)
        async with scheduler_member(client, objects, "second"):
            batch = await w.ended(submitted)
        run = await w.run(submitted)
        assert_owner_is_told(batch, run)
        await assert_files_and_counts_agree(w, batch, run)
        assert (batch.output_file_id, run.output_file_id, run.completed) == (None, "", 0)


class Flips:
    """A store on the way from which a bit is changed, in as many reads of some objects."""

    def __init__(self, behind: ObjectStore, part: str, times: int) -> None:
        self._behind = behind
        self._part = part
        self.left = times

    def __getattr__(self, name: str) -> Any:
        return getattr(self._behind, name)

    async def get(self, key: str) -> bytes:
        return self._flipped(key, await self._behind.get(key))

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        return self._flipped(key, await self._behind.get_range(key, start, length))

    def _flipped(self, key: str, data: bytes) -> bytes:
        if self._part not in key or not self.left:
            return data
        self.left -= 1
        return bytes([data[0] ^ 1]) + data[1:]


@pytest.mark.parametrize("part", ["/segments/", "/index"])
async def test_what_only_the_way_changed_is_read_again(
    client: EtcdClient, objects: ObjectStore, part: str
) -> None:
    async with world(client, objects) as w:
        submitted, _ = await with_three_segments(w, objects)
        flips: Any = Flips(objects, part, times=1)
        w.router.allow = None
        async with scheduler_member(client, flips, "second"):
            batch = await w.ended(submitted)
        assert flips.left == 0
        assert batch.status == "completed"
        await assert_files_and_counts_agree(w, batch, await w.run(submitted))


async def test_a_changed_index_is_not_followed(client: EtcdClient, objects: ObjectStore) -> None:
    """A changed offset would name other bytes of the file, which may be a line's too."""
    async with world(client, objects) as w:
        submitted, before = await with_three_segments(w, objects)
        index = bytearray(await objects.get(before.index_object))
        index[-1] ^= 1
        await objects.put(before.index_object, bytes(index))
        async with scheduler_member(client, objects, "second"):
            batch = await w.ended(submitted)
        run = await w.run(submitted)
        assert_owner_is_told(batch, run)
        assert "index" in batch.errors[0].message
        assert run.completed == before.completed > 0
        assert (batch.error_file_id, run.error_file_id) == (None, "")


async def test_a_run_from_before_digests_were_noted_goes_on(
    client: EtcdClient, objects: ObjectStore
) -> None:
    async with world(client, objects) as w:
        submitted, before = await with_three_segments(w, objects)
        old = msgspec.to_builtins(before)
        del old["index_digest"]
        for ref in old["segments"]:
            del ref["digest"]
        await client.put(keys.run(before.id), msgspec.json.encode(old))
        w.router.allow = None
        async with scheduler_member(client, objects, "second"):
            batch = await w.ended(submitted)
        assert batch.status == "completed"
        run = await w.run(submitted)
        assert sum(not ref.digest for ref in run.segments) == len(before.segments)
        await assert_files_and_counts_agree(w, batch, run)


@pytest.mark.parametrize("lost", ["index", "input"])
async def test_without_its_index_or_input_a_run_keeps_its_outputs(
    client: EtcdClient, objects: ObjectStore, lost: str
) -> None:
    """Nobody can name the other lines then: there is no error file."""
    async with world(client, objects) as w:
        submitted, before = await with_three_segments(w, objects)
        await objects.delete(before.index_object if lost == "index" else before.input_object)
        async with scheduler_member(client, objects, "second"):
            batch = await w.ended(submitted)
        run = await w.run(submitted)
        assert_owner_is_told(batch, run)
        assert lost in batch.errors[0].message
        outputs = await w.custom_ids(batch.output_file_id)
        assert (run.completed, run.failed) == (len(outputs), 40 - len(outputs))
        assert run.completed == before.completed > 0
        assert (batch.error_file_id, run.error_file_id) == (None, "")


class Files:
    """An object store in which output and error files wait, or cannot be written."""

    def __init__(self, behind: ObjectStore, *, refuses: bool) -> None:
        self._behind = behind
        self._refuses = refuses
        self.asked: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._behind, name)

    async def put_stream(self, key: str) -> Any:
        self.asked.append(key)
        if self._refuses:
            raise InvalidKey(key, "the store is closed")
        if len(self.asked) > 1:  # the output file is there, the error file is not
            await asyncio.Event().wait()
        return await self._behind.put_stream(key)


async def test_a_leader_that_goes_while_it_writes_the_files_changes_nothing(
    client: EtcdClient, objects: ObjectStore
) -> None:
    async with world(client, objects) as w:
        submitted, before = await with_three_segments(w, objects)
        await scribble(objects, before.segments[1].object)
        slow: Any = Files(objects, refuses=False)
        async with scheduler_member(client, slow, "second"):
            await eventually(lambda: len(slow.asked) == 2)
            assert (await w.batch(submitted)).status == "finalizing"
            begun = await w.run(submitted)
            assert (begun.outcome, begun.completed) == ("failed", before.completed)
        async with scheduler_member(client, objects, "third"):
            batch = await w.ended(submitted)
        run = await w.run(submitted)
        assert_owner_is_told(batch, run)
        await assert_files_and_counts_agree(w, batch, run)
        assert batch.output_file_id == begun.output_file_id
        assert batch.error_file_id == begun.error_file_id


async def test_damage_that_only_the_end_finds_fails_the_run_too(
    client: EtcdClient, objects: ObjectStore
) -> None:
    async with world(client, objects) as w:
        slow: Any = Files(objects, refuses=False)
        async with scheduler_member(client, slow, "first"):
            submitted = await w.submitter.submit(lines_of(LINES))
            await eventually(lambda: len(slow.asked) == 2)
        before = await w.run(submitted)
        assert before.outcome == "completed"
        await scribble(objects, before.segments[0].object)
        async with scheduler_member(client, objects, "second"):
            batch = await w.ended(submitted)
        run = await w.run(submitted)
        assert_owner_is_told(batch, run)
        await assert_files_and_counts_agree(w, batch, run)


async def test_a_run_whose_files_cannot_be_written_claims_no_completed_line(
    client: EtcdClient, objects: ObjectStore
) -> None:
    async with world(client, objects) as w:
        submitted, before = await with_three_segments(w, objects)
        await scribble(objects, before.segments[1].object)
        closed: Any = Files(objects, refuses=True)
        async with scheduler_member(client, closed, "second"):
            batch = await w.ended(submitted)
        run = await w.run(submitted)
        assert_owner_is_told(batch, run)
        assert (batch.output_file_id, batch.error_file_id) == (None, None)
        assert (run.output_file_id, run.error_file_id) == ("", "")
        assert (run.completed, run.failed) == (0, 40)
