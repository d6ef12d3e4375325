"""/v1/files: streamed in and out, listed exactly, refused in words that help."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import openai
import psutil
import pytest

from libs.records import keys
from services.router.tests.conftest import Stage

LINE = b'{"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": {}}\n'


async def test_a_file_is_created_read_listed_and_deleted(stage: Stage) -> None:
    client = stage.openai()
    made = await client.files.create(file=("in.jsonl", LINE), purpose="batch")
    assert made.id.startswith("file-")
    assert (made.bytes, made.filename, made.purpose) == (len(LINE), "in.jsonl", "batch")
    assert made.status == "processed"
    assert made.expires_at == made.created_at + 30 * 86_400
    assert (await client.files.wait_for_processing(made.id)).id == made.id
    assert await client.files.retrieve(made.id) == made
    assert (await client.files.content(made.id)).content == LINE
    assert [each.id async for each in client.files.list()] == [made.id]
    gone = await client.files.delete(made.id)
    assert gone.deleted
    with pytest.raises(openai.NotFoundError):
        await client.files.retrieve(made.id)
    with pytest.raises(openai.NotFoundError):
        await client.files.content(made.id)
    assert not await stage.objects.exists(keys.file_object("local", made.id))


@contextlib.contextmanager
def a_file_in_its_place(folder: Path) -> Iterator[None]:
    aside = folder.rename(folder.with_name("aside"))
    folder.touch()
    yield
    folder.unlink()
    aside.rename(folder)


async def test_an_object_folder_that_a_file_replaced_is_the_stores_fault_and_is_logged(
    fresh: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    http = fresh.http()

    async def upload() -> httpx.Response:
        file = {"file": ("in.jsonl", LINE)}
        return await http.post("/v1/files", files=file, data={"purpose": "batch"})

    content = f"/v1/files/{(await upload()).json()['id']}/content"
    folder = Path(fresh.config.objects)
    with a_file_in_its_place(folder):
        answers = [await upload(), await http.get(content)]
    for answer in answers:
        error = answer.json()["error"]
        assert (answer.status_code, error["code"]) == (503, "store_unavailable")
        assert error["message"] == "The object store does not answer now: try again soon."
    told = [each.getMessage() for each in caplog.records if each.levelname == "ERROR"]
    assert len(told) == 2
    assert all(f"{folder} does not answer properly: its folder is not" in each for each in told)
    assert (await http.get(content)).content == LINE


async def test_expires_after_is_kept_and_checked(stage: Stage) -> None:
    client = stage.openai()
    made = await client.files.create(
        file=LINE, purpose="user_data", expires_after={"anchor": "created_at", "seconds": 3600}
    )
    assert made.expires_at == made.created_at + 3600
    forever = await client.files.create(file=LINE, purpose="user_data")
    assert forever.expires_at is None
    with pytest.raises(openai.BadRequestError) as caught:
        await client.files.create(
            file=LINE, purpose="batch", expires_after={"anchor": "created_at", "seconds": 5}
        )
    assert caught.value.param == "expires_after.seconds"


@pytest.mark.parametrize(
    "content", [LINE[:20] + b"\xff" + LINE, LINE.decode().encode("utf-16-le"), b"\xe4\xbd"]
)
async def test_a_batch_file_that_is_not_utf8_is_refused_at_upload(
    stage: Stage, content: bytes
) -> None:
    with pytest.raises(openai.BadRequestError, match="utf-8") as caught:
        await stage.openai().files.create(file=("in.jsonl", content), purpose="batch")
    assert caught.value.code == "invalid_utf8"
    assert await stage.objects.list("files") == []
    assert (await stage.openai().files.create(file=content, purpose="user_data")).bytes


async def test_an_empty_batch_file_is_refused_at_upload(stage: Stage) -> None:
    with pytest.raises(openai.BadRequestError, match="empty") as caught:
        await stage.openai().files.create(file=("in.jsonl", b""), purpose="batch")
    assert (caught.value.code, caught.value.param) == ("empty_file", "file")
    assert await stage.objects.list("files") == []
    assert (await stage.openai().files.create(file=("a", b""), purpose="user_data")).bytes == 0


async def test_the_purpose_may_come_after_the_file(stage: Stage) -> None:
    body = (
        b'--B\r\nContent-Disposition: form-data; name="file"; filename="x.jsonl"\r\n\r\n\xff\xff'
        b'\r\n--B\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n--B--\r\n'
    )
    answer = await stage.http().post(
        "/v1/files", content=body, headers={"content-type": "multipart/form-data; boundary=B"}
    )
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "invalid_utf8"


NO_FORMS = [
    (b"", "file"),
    (b"garbage", "file"),
    (
        b'--B\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n--B--\r\n',
        "file",
    ),
    (b'--B\r\nContent-Disposition: form-data; name="file"; filename="x"\r\n\r\nabc', "file"),
    (
        b'--B\r\nContent-Disposition: form-data; name="file"; filename="x"\r\n\r\nabc\r\n--B--\r\n',
        "purpose",
    ),
]


async def test_an_upload_that_is_no_form_is_refused_and_leaves_nothing(stage: Stage) -> None:
    http = stage.http()
    headers = {"content-type": "multipart/form-data; boundary=B"}
    for body, param in NO_FORMS:
        answer = await http.post("/v1/files", content=body, headers=headers)
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == param
    assert await stage.objects.list("files") == []


async def test_an_upload_that_is_cut_off_leaves_nothing(stage: Stage) -> None:
    url = httpx.URL(stage.router.http_url)
    reader, writer = await asyncio.open_connection(url.host, url.port)
    writer.write(
        b"POST /v1/files HTTP/1.1\r\nhost: x\r\ncontent-length: 1000000\r\n"
        b"content-type: multipart/form-data; boundary=B\r\n\r\n"
        b'--B\r\nContent-Disposition: form-data; name="file"; filename="x"\r\n\r\nabc'
    )
    await writer.drain()
    writer.close()
    await reader.read()
    assert await stage.objects.list("files") == []
    assert (await stage.http().get("/v1/files")).json()["data"] == []


async def test_paging_gives_every_file_once_newest_first(stage: Stage) -> None:
    client = stage.openai()
    ids = [(await client.files.create(file=b"x", purpose="user_data")).id for _ in range(12)]
    newest_first = sorted(ids, reverse=True)
    for limit in (1, 5, 100):
        assert [each.id async for each in client.files.list(limit=limit)] == newest_first
    assert [each.id async for each in client.files.list(limit=5, order="asc")] == sorted(ids)
    page = await client.files.list(limit=0)
    assert (page.data, page.has_more) == ([], False)
    assert [each.id async for each in client.files.list(purpose="batch")] == []


async def test_paging_goes_on_after_an_item_that_was_deleted(stage: Stage) -> None:
    client = stage.openai()
    for _ in range(5):
        await client.files.create(file=b"x", purpose="user_data")
    async for each in client.files.list(limit=2):
        await client.files.delete(each.id)
    assert (await stage.http().get("/v1/files")).json()["data"] == []


async def test_a_limit_out_of_range_is_refused_in_openais_words(stage: Stage) -> None:
    http = stage.http()
    for limit, code in (
        ("-1", "integer_below_min_value"),
        ("10001", "integer_above_max_value"),
        ("x", "invalid_type"),
    ):
        answer = await http.get("/v1/files", params={"limit": limit})
        assert answer.status_code == 400
        assert answer.json()["error"]["code"] == code
        assert answer.json()["error"]["param"] == "limit"


async def test_an_expiry_of_five_thousand_digits_is_a_bad_value_like_any_other(
    stage: Stage,
) -> None:
    fields = {"purpose": "batch", "expires_after[anchor]": "created_at"}
    answer = await stage.http().post(
        "/v1/files",
        data=fields | {"expires_after[seconds]": "9" * 5000},
        files={"file": ("in.jsonl", LINE)},
    )
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "expires_after.seconds"


async def test_a_file_in_use_is_not_deleted_until_its_batch_has_ended(stage: Stage) -> None:
    client = stage.openai(max_retries=2)
    file = await client.files.create(file=("in.jsonl", LINE), purpose="batch")
    batch = await client.batches.create(
        input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h"
    )
    with pytest.raises(openai.ConflictError, match=batch.id) as caught:
        await client.files.delete(file.id)
    assert caught.value.code == "file_in_use"
    assert caught.value.response.headers["x-should-retry"] == "false"
    await stage.client.delete(keys.file_ref(file.id, batch.id))
    assert (await client.files.delete(file.id)).deleted


async def test_a_100_mb_upload_and_download_stay_out_of_memory(stage: Stage) -> None:
    size, chunk = 100_000_000, (b"x" * 99 + b"\n") * 1000
    process = psutil.Process()

    async def body() -> AsyncIterator[bytes]:
        yield b'--B\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
        yield b'--B\r\nContent-Disposition: form-data; name="file"; filename="big"\r\n\r\n'
        for _ in range(size // len(chunk)):
            yield chunk
        yield b"\r\n--B--\r\n"

    http = stage.http()
    before = process.memory_info().rss
    peak = before
    headers = {"content-type": "multipart/form-data; boundary=B"}
    made = (await http.post("/v1/files", content=body(), headers=headers)).json()
    peak = max(peak, process.memory_info().rss)
    assert made["bytes"] == size
    got = 0
    async with http.stream("GET", f"/v1/files/{made['id']}/content") as response:
        assert response.headers["content-length"] == str(size)
        async for part in response.aiter_raw():
            got += len(part)
            peak = max(peak, process.memory_info().rss)
    assert got == size
    assert peak - before < size / 2


async def test_a_file_part_without_a_filename_is_told_that_it_needs_one(stage: Stage) -> None:
    body = (
        b'--B\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
        b'--B\r\nContent-Disposition: form-data; name="file"\r\n\r\n{}\r\n--B--\r\n'
    )
    answer = await stage.http().post(
        "/v1/files", content=body, headers={"content-type": "multipart/form-data; boundary=B"}
    )
    error = answer.json()["error"]
    assert (answer.status_code, error["param"], error["code"]) == (400, "file", "missing_filename")
    assert "needs a filename" in error["message"]


@pytest.mark.parametrize("path", ["/v1/files", "/v1/chat/completions", "/v1/batches"])
async def test_a_body_that_is_encoded_is_415_and_one_that_says_it_is_not_is_taken(
    stage: Stage, path: str
) -> None:
    http = stage.http()
    answer = await http.post(path, content=b"\x1f\x8b", headers={"content-encoding": "gzip"})
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (415, "unsupported_content_encoding")
    assert "gzip" in error["message"]
    answer = await http.post(path, content=b"{}", headers={"content-encoding": "identity"})
    assert answer.status_code == 400


async def test_a_batch_file_over_the_limit_is_400(bare: Stage) -> None:
    await bare.add_router(max_batch_bytes=1000, max_file_bytes=5000)
    client = bare.openai()
    with pytest.raises(openai.BadRequestError) as caught:
        await client.files.create(file=("in.jsonl", b"x" * 1001), purpose="batch")
    assert caught.value.code == "file_too_large"
    assert (await client.files.create(file=b"x" * 1001, purpose="user_data")).bytes == 1001
    with pytest.raises(openai.BadRequestError):
        await client.files.create(file=b"x" * 5001, purpose="user_data")
    assert len(await bare.objects.list("files")) == 1


async def test_content_is_given_back_byte_for_byte(stage: Stage) -> None:
    content = '\ufeff{"a": "\u2028 \u0085"}\r\n\r\nend'.encode()
    client = stage.openai()
    made = await client.files.create(file=('ü "q".jsonl', content), purpose="batch")
    assert (await client.files.content(made.id)).content == content
    assert "ü" in made.filename
    assert json.loads((await stage.http().get(f"/v1/files/{made.id}")).text)["id"] == made.id
