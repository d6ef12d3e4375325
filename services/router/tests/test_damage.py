"""One changed byte in what is stored: nobody is given it as what was stored."""

from __future__ import annotations

from typing import Any

import grpc
import msgspec
import pytest

from impala.router.v1 import router_pb2, router_pb2_grpc
from libs.objects import digest_of
from libs.records import keys
from libs.records.batch import FileRecord, SegmentRef
from libs.records.segment import encode_segment
from libs.rpc import connect
from services.router.tests.conftest import Stage
from services.router.tests.grpc_api.test_worker import (
    INDEX,
    Worker,
    index,
    request_line,
    worker,
)
from services.router.tests.http.test_results import Leader

__all__ = ["worker"]

MIB = 1 << 20
CONTENT = b"".join(request_line(f"line-{n}") for n in range(3))


async def change_a_byte(stage: Stage, key: str, at: int = -2) -> None:
    data = bytearray(await stage.objects.get(key))
    data[at] ^= 1
    await stage.objects.put(key, bytes(data))


def code_of(error: BaseException) -> Any:
    assert isinstance(error, grpc.aio.AioRpcError)
    return error.code()


async def until_data_loss(call: Any) -> list[Any]:
    """What came before it."""
    found: list[Any] = []

    async def take_all() -> None:
        async for message in call:
            found.append(message)

    with pytest.raises(grpc.RpcError) as caught:
        await take_all()
    assert code_of(caught.value) is grpc.StatusCode.DATA_LOSS
    return found


async def test_what_is_noted_of_an_upload_is_what_was_stored(stage: Stage) -> None:
    content = bytes(range(128)) * (3 * MIB // 128) + b"\n"
    made = await stage.openai().files.create(file=content, purpose="user_data")
    entry = await stage.client.get(keys.file("local", made.id))
    assert entry is not None
    record = msgspec.json.decode(entry.value, type=FileRecord)
    assert (record.bytes, record.digest) == (len(content), digest_of(content))
    assert await stage.objects.get(keys.file_object("local", made.id)) == content
    assert (await stage.openai().files.content(made.id)).content == content


async def test_a_small_damaged_file_is_an_error_and_no_body(stage: Stage) -> None:
    made = await stage.openai().files.create(file=CONTENT, purpose="batch")
    await change_a_byte(stage, keys.file_object("local", made.id))
    answer = await stage.http().get(f"/v1/files/{made.id}/content")
    assert answer.status_code == 500
    assert answer.json()["error"]["code"] == "file_damaged"


@pytest.mark.parametrize("cut", [0, 1])
async def test_a_large_damaged_file_never_comes_to_its_end(stage: Stage, cut: int) -> None:
    content = b"0123456789abcde\n" * (3 * MIB // 16)
    made = await stage.openai().files.create(file=content, purpose="user_data")
    key = keys.file_object("local", made.id)
    if cut:
        await stage.objects.put(key, content[:-cut])
    else:
        await change_a_byte(stage, key, at=5)
    async with connect(stage.router.address) as channel:
        stub = router_pb2_grpc.FilesStub(channel)
        parts = await until_data_loss(stub.Download(router_pb2.DownloadRequest(id=made.id)))
    assert 0 < sum(len(part.chunk) for part in parts) < len(content) - cut


async def test_a_damaged_segment_is_not_shown(stage: Stage) -> None:
    leader = await Leader.of_new_batch(stage)
    await leader.record(b'{"custom_id":"0"}')
    key = keys.segment_object(leader.run.id, 7, 2)
    data = encode_segment([(2, "output", b'{"custom_id":"1"}')])
    await stage.objects.put(key, data)
    ref = SegmentRef(object=key, lines=1, bytes=len(data), digest=digest_of(data))
    leader.run.segments.append(ref)
    await leader.record(b'{"custom_id":"2"}')
    whole = await stage.http().get(f"/imp/v1/batches/{leader.batch.id}/results")
    assert len(whole.content.splitlines()) == 3
    await stage.objects.put(key, data.replace(b'"1"', b'"2"'))
    async with connect(stage.router.address) as channel:
        stub = router_pb2_grpc.BatchesStub(channel)
        request = router_pb2.ResultsRequest(batch_id=leader.batch.id)
        found = [line.line_json for line in await until_data_loss(stub.Results(request))]
    assert found == ['{"custom_id":"0"}']


async def test_the_index_is_noted_and_a_damaged_input_is_not_indexed(
    stage: Stage, worker: Worker
) -> None:
    noted: dict[str, Any] = {"input_bytes": len(CONTENT), "input_digest": digest_of(CONTENT)}
    done = await index(stage, worker, CONTENT, **noted)
    assert done.index_digest == digest_of(await stage.objects.get(INDEX))
    changed = CONTENT.replace(b"line-1", b"line-7")
    await stage.objects.delete(INDEX)
    with pytest.raises(grpc.RpcError) as caught:
        await index(stage, worker, changed, **noted)
    assert code_of(caught.value) is grpc.StatusCode.DATA_LOSS
    assert not await stage.objects.exists(INDEX)


async def test_a_line_is_not_blamed_for_what_the_store_changed(
    stage: Stage, worker: Worker
) -> None:
    noted: dict[str, Any] = {"input_bytes": len(CONTENT), "input_digest": digest_of(CONTENT)}
    broken = CONTENT.replace(b'{"custom_id"', b'["custom_id"', 2)
    with pytest.raises(grpc.RpcError) as caught:
        await index(stage, worker, broken, max_errors=1, **noted)
    assert code_of(caught.value) is grpc.StatusCode.DATA_LOSS
    assert (await index(stage, worker, broken, max_errors=1)).errors
