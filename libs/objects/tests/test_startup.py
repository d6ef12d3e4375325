"""A store that was configured wrongly is told at the start, in words that name the setting."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from libs.clock import ManualClock, SystemClock
from libs.errors import StartupError
from libs.objects import check_store, open_store
from libs.testing.http_faults import HttpFaults, Rule
from libs.testing.s3 import KEYS, S3Process

WRONG_REGION = (
    "<Error><Code>AuthorizationHeaderMalformed</Code><Message>The authorization header is "
    "malformed; the region 'us-east-1' is wrong; expecting 'eu-west-1'</Message></Error>"
)
SKEWED = "<Error><Code>RequestTimeTooSkewed</Code><Message>Too far.</Message></Error>"


@pytest_asyncio.fixture
async def proxy(s3: S3Process) -> AsyncIterator[HttpFaults]:
    async with HttpFaults(s3.port) as proxy:
        yield proxy


async def told(endpoint: str, bucket: str = "bucket") -> str:
    store = open_store(f"s3://{bucket}/checked", KEYS | {"endpoint": endpoint})
    with pytest.raises(StartupError) as caught:
        await check_store(store, SystemClock(), patience_s=0.0)
    message = str(caught.value)
    assert "--objects" in message and f"s3://{bucket}/checked" in message
    assert "\n" not in message and "<" not in message
    return message


async def test_a_store_that_can_be_used_is_left_as_it_was(s3: S3Process, tmp_path: Path) -> None:
    store = open_store("s3://bucket/usable", KEYS | {"endpoint": s3.endpoint})
    await check_store(store, SystemClock())
    assert await store.list() == []
    await check_store(open_store(str(tmp_path)), SystemClock())
    await check_store(open_store("memory://"), SystemClock())


async def test_wrong_credentials() -> None:
    with S3Process(checks_keys=True) as closed:
        message = await told(closed.endpoint)
    assert "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY" in message


async def test_a_missing_bucket(s3: S3Process) -> None:
    message = await told(s3.endpoint, "no-such-bucket")
    assert "no bucket 'no-such-bucket'" in message and s3.endpoint in message


async def test_a_wrong_region(proxy: HttpFaults) -> None:
    proxy.add(Rule(answer=400, body=WRONG_REGION))
    assert "AWS_REGION" in await told(proxy.url)


async def test_a_clock_that_is_wrong(proxy: HttpFaults) -> None:
    proxy.add(Rule(answer=403, body=SKEWED))
    assert "set its clock" in await told(proxy.url)


async def test_credentials_that_may_read_and_not_write(proxy: HttpFaults) -> None:
    proxy.add(Rule(method="PUT", answer=403))
    assert "AWS_ACCESS_KEY_ID" in await told(proxy.url)


async def test_a_wrong_endpoint() -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        nobody = f"http://127.0.0.1:{probe.getsockname()[1]}"
    message = await told(nobody)
    assert "AWS_ENDPOINT_URL" in message and nobody in message


def test_an_endpoint_that_is_no_url() -> None:
    with pytest.raises(StartupError, match=r"AWS_ENDPOINT_URL.*http://"):
        open_store("s3://bucket", KEYS | {"endpoint": "127.0.0.1:9000"})


async def test_a_store_without_conditional_writes(proxy: HttpFaults) -> None:
    """It takes the header, and writes all the same."""
    proxy.add(Rule(method="PUT", answer=200, headers='etag: "1"\r\n'))
    assert "conditional writes" in await told(proxy.url)


async def test_a_store_that_comes_late_is_waited_for(proxy: HttpFaults) -> None:
    clock = ManualClock()
    refusal = proxy.add(Rule(answer=503))
    store = open_store("s3://bucket/late", KEYS | {"endpoint": proxy.url})
    checking = asyncio.create_task(check_store(store, clock, patience_s=10.0))
    async with asyncio.timeout(30):
        await clock.wait_for_sleepers(1)
        proxy.rules.remove(refusal)
        clock.advance(1.0)
        await checking
