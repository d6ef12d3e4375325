"""A remote store that fails: what is read is right or an error, what is written is there as a whole
or not at all, and nobody tries for ever."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
import pytest_asyncio

from libs.objects import ObjectStore, StoreUnavailable, open_store
from libs.objects.tests.conftest import s3_client
from libs.testing.http_faults import HttpFaults, Rule
from libs.testing.s3 import BUCKET, KEYS, S3Process

MIB = 1 << 20
DATA = bytes(range(251)) * (5 * MIB // 251)
MOST_TRIES = 5


@pytest_asyncio.fixture
async def proxy(s3: S3Process) -> AsyncIterator[HttpFaults]:
    async with HttpFaults(s3.port) as proxy:
        yield proxy


@pytest.fixture
def store(proxy: HttpFaults, request: pytest.FixtureRequest) -> ObjectStore:
    prefix = f"faults-{request.node.name.partition('[')[0]}"
    return open_store(f"s3://bucket/{prefix}", KEYS | {"endpoint": proxy.url})


async def stream_of(store: ObjectStore, key: str, start: int = 0) -> bytes:
    return b"".join([chunk async for chunk in store.stream(key, start)])


def reads_of(store: ObjectStore) -> tuple[Callable[[], Awaitable[bytes]], ...]:
    """Every way of reading the object `o`, which is DATA."""
    return (
        lambda: store.get("o"),
        lambda: store.get_range("o", 0, len(DATA)),
        lambda: stream_of(store, "o"),
    )


async def put_parts(store: ObjectStore, key: str, parts: int = 20) -> bytes:
    data = [bytes([n]) * MIB for n in range(parts)]
    async with await store.put_stream(key) as writer:
        for each in data:
            await writer.write(each)
    return b"".join(data)


@pytest.mark.parametrize(
    "rule", [{"cut": "response", "cut_after": 1_234_567}, {"answer": 500}, {"answer": 503}]
)
async def test_a_read_that_fails_midway_goes_on_with_the_right_bytes(
    store: ObjectStore, proxy: HttpFaults, rule: dict[str, object]
) -> None:
    await store.put("o", DATA)
    for read in reads_of(store):
        fault = proxy.add(Rule(method="GET", times=2, **rule))  # type: ignore[arg-type]
        assert await read() == DATA
        assert fault.hits == 2
    proxy.add(Rule(method="GET", cut="response", cut_after=1000, times=1))
    assert await stream_of(store, "o", start=3 * MIB) == DATA[3 * MIB :]


async def test_a_read_that_always_breaks_is_an_error_and_no_short_content(
    store: ObjectStore, proxy: HttpFaults
) -> None:
    await store.put("o", DATA)
    fault = proxy.add(Rule(method="GET", cut="response", cut_after=1000))
    for read in reads_of(store):
        before = fault.hits
        with pytest.raises(StoreUnavailable):
            await read()
        assert fault.hits - before <= MOST_TRIES


async def test_a_slow_store_is_waited_for(store: ObjectStore, proxy: HttpFaults) -> None:
    await store.put("o", DATA[:100_000])
    proxy.add(Rule(bytes_per_s=200_000, delay_s=0.2))
    assert await store.get("o") == DATA[:100_000]
    await store.put("o2", DATA[:50_000])
    proxy.clear()
    assert await store.get("o2") == DATA[:50_000]


@pytest.mark.parametrize(
    "rule",
    [
        {"answer": 500},
        {"answer": 503},
        {"cut": "request", "cut_after": 1000},
        {"lose_answer": True},
    ],
)
async def test_a_write_that_fails_once_is_there_once_and_whole(
    store: ObjectStore, proxy: HttpFaults, rule: dict[str, object]
) -> None:
    fault = proxy.add(Rule(method="PUT", times=1, **rule))  # type: ignore[arg-type]
    await store.put("small", DATA[:10_000])
    assert (fault.hits, await store.get("small")) == (1, DATA[:10_000])
    parts = proxy.add(Rule(method="PUT", contains="partNumber=2", times=1, **rule))  # type: ignore[arg-type]
    whole = await put_parts(store, "large")
    assert (parts.hits, await store.get("large")) == (1, whole)


@pytest.mark.parametrize("contains", ["uploads", "uploadId"])
async def test_the_lost_answer_of_an_upload_s_begin_or_end_changes_nothing(
    store: ObjectStore, proxy: HttpFaults, contains: str
) -> None:
    lost = proxy.add(Rule(method="POST", contains=contains, lose_answer=True, times=1))
    whole = await put_parts(store, "o")
    assert (lost.hits, await store.get("o")) == (1, whole)


@pytest.mark.parametrize(
    "rule",
    [
        {"method": "PUT", "contains": "partNumber=2", "answer": 500},
        {"method": "PUT", "contains": "partNumber=2", "cut": "request", "cut_after": MIB},
        {"method": "POST", "contains": "uploadId", "answer": 503},
    ],
)
async def test_an_upload_that_cannot_be_made_leaves_nothing(
    store: ObjectStore, proxy: HttpFaults, s3: S3Process, rule: dict[str, object]
) -> None:
    fault = proxy.add(Rule(**rule))  # type: ignore[arg-type]
    with pytest.raises(StoreUnavailable) as caught:
        await put_parts(store, "o")
    assert caught.value.retry_after_s is not None
    assert 1 <= fault.hits <= MOST_TRIES
    assert not await store.exists("o")
    prefix = store.url.removeprefix(f"s3://{BUCKET}/")
    listed = s3_client(s3.endpoint).list_multipart_uploads(Bucket=BUCKET, Prefix=prefix)
    assert "Uploads" not in listed


async def test_what_was_created_though_the_answer_was_lost_is_there_once(
    store: ObjectStore, proxy: HttpFaults
) -> None:
    """The second try says that it is there: whose it is, its bytes tell."""
    proxy.add(Rule(method="PUT", lose_answer=True, times=1))
    assert not await store.put_if_absent("o", b"mine")
    assert await store.get("o") == b"mine"
    assert not await store.put_if_absent("o", b"another's")
    assert await store.get("o") == b"mine"


async def test_a_delete_and_a_listing_are_tried_again(
    store: ObjectStore, proxy: HttpFaults
) -> None:
    await store.put("a", b"")
    await store.put("b", b"")
    proxy.add(Rule(method="GET", contains="list-type", answer=500, times=2))
    assert [info.key for info in await store.list()] == ["a", "b"]
    proxy.add(Rule(method="POST", contains="delete", lose_answer=True, times=1))
    await store.delete("a")
    assert not await store.exists("a")
