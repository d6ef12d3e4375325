"""What only a remote store can do wrong."""

from __future__ import annotations

import socket
from functools import partial

import pytest

from libs.errors import StartupError
from libs.objects import StoreUnavailable, open_store
from libs.objects.tests.conftest import s3_client
from libs.testing.s3 import KEYS


async def test_an_aborted_stream_leaves_no_open_upload(s3_endpoint: str) -> None:
    store = open_store("s3://bucket/aborted", KEYS | {"endpoint": s3_endpoint})
    uploads = partial(s3_client(s3_endpoint).list_multipart_uploads, Prefix="aborted")
    writer = await store.put_stream("o")
    await writer.write(b"x" * (20 << 20))
    assert "Uploads" in uploads(Bucket="bucket")
    await writer.abort()
    await writer.abort()
    assert "Uploads" not in uploads(Bucket="bucket")
    assert not await store.exists("o")


async def test_the_prefix_of_the_url_is_not_part_of_the_keys(s3_endpoint: str) -> None:
    store = open_store("s3://bucket/some/prefix", KEYS | {"endpoint": s3_endpoint})
    await store.put("o", b"1")
    assert [info.key for info in await store.list()] == ["o"]
    above = open_store("s3://bucket/some", KEYS | {"endpoint": s3_endpoint})
    assert [info.key for info in await above.list()] == ["prefix/o"]


async def test_the_usual_environment_names_the_endpoint(
    s3_endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_endpoint)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    store = open_store("s3://bucket/env")
    await store.put("o", b"1")
    assert await store.get("o") == b"1"


async def test_a_store_that_does_not_answer_is_unavailable() -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    store = open_store("s3://bucket", KEYS | {"endpoint": f"http://127.0.0.1:{port}"})
    with pytest.raises(StoreUnavailable, match="s3://bucket") as caught:
        await store.get("o")
    assert "\n" not in str(caught.value)


async def test_a_missing_bucket_is_told_as_such(s3_endpoint: str) -> None:
    store = open_store("s3://no-such-bucket", KEYS | {"endpoint": s3_endpoint})
    with pytest.raises(StoreUnavailable, match="bucket does not exist"):
        await store.put("o", b"")
    with pytest.raises(StoreUnavailable, match="bucket does not exist"):
        async with await store.put_stream("o") as writer:
            await writer.write(b"x" * (20 << 20))


@pytest.mark.parametrize("url", ["ftp://host/x", "s3://"])
def test_a_url_that_names_no_store_is_one_clear_sentence(url: str) -> None:
    with pytest.raises(StartupError, match="cannot be used"):
        open_store(url)
