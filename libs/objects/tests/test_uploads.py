"""Uploads whose writer is gone are ended, and no other."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from functools import partial

import pytest

from libs.objects import AccessDenied, StoreUnavailable, open_store
from libs.objects.signing import S3Keys, signed_headers
from libs.objects.tests.conftest import s3_client
from libs.testing.http_faults import HttpFaults, Rule
from libs.testing.s3 import BUCKET, KEYS, S3Process

EXAMPLE = S3Keys("AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", "us-east-1")
PART = b"x" * (9 << 20)


@pytest.mark.parametrize(
    ("query", "signature"),
    [
        (
            [("lifecycle", "")],
            "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543",
        ),
        (
            [("prefix", "J"), ("max-keys", "2")],
            "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7",
        ),
    ],
)
def test_a_signature_is_that_of_the_documentation(
    query: list[tuple[str, str]], signature: str
) -> None:
    now = datetime(2013, 5, 24, tzinfo=UTC)
    host = "examplebucket.s3.amazonaws.com"
    headers = signed_headers("GET", host, "/", query, EXAMPLE, now)
    assert headers["authorization"] == (
        "AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request, "
        f"SignedHeaders=host;x-amz-content-sha256;x-amz-date, Signature={signature}"
    )


UPLOAD = "<Upload><Key>aged/{}</Key><UploadId>{}</UploadId><Initiated>{}</Initiated></Upload>"


async def test_the_store_s_own_clock_tells_how_old_an_upload_is(s3: S3Process) -> None:
    """Ours may be wrong by hours."""
    uploads = UPLOAD.format("old", "u-old", "2020-01-01T10:00:00.000Z")
    uploads += UPLOAD.format("new", "u-new", "2020-01-01T11:30:00.000Z")
    body = f'<L xmlns="http://s3.amazonaws.com/doc/2006-03-01/">{uploads}</L>'
    date = "date: Wed, 01 Jan 2020 12:00:00 GMT\r\n"
    async with HttpFaults(s3.port) as proxy:
        store = open_store("s3://bucket/aged", KEYS | {"endpoint": proxy.url})
        proxy.add(Rule(method="GET", answer=200, body=body, headers=date))
        assert await store.sweep_unfinished(3600.0) == 1
        ended = [each.target for each in proxy.seen if each.method == "DELETE"]
    assert ended == ["/bucket/aged/old?uploadId=u-old"]


async def test_what_nobody_finishes_is_ended(s3: S3Process) -> None:
    listed = partial(s3_client(s3.endpoint).list_multipart_uploads, Bucket=BUCKET)
    options = KEYS | {"endpoint": s3.endpoint}
    ours, theirs = open_store("s3://bucket/ours", options), open_store("s3://bucket/their", options)
    for store, name in ((ours, "a/b=c@d"), (ours, "d"), (theirs, "e")):
        writer = await store.put_stream(name)
        await writer.write(PART)
    await ours.put("kept", b"1")
    assert len(listed(Prefix="ours/")["Uploads"]) == 2
    assert await ours.sweep_unfinished(0.0) == 2
    assert "Uploads" not in listed(Prefix="ours/")
    assert len(listed(Prefix="their/")["Uploads"]) == 1
    assert [info.key for info in await ours.list()] == ["kept"]


async def test_a_writer_whose_upload_was_ended_is_told(s3: S3Process) -> None:
    store = open_store("s3://bucket/ended", KEYS | {"endpoint": s3.endpoint})
    writer = await store.put_stream("o")
    await writer.write(PART)
    assert await store.sweep_unfinished(0.0) == 1
    with pytest.raises(StoreUnavailable):
        await writer.close()
    assert not await store.exists("o")


async def test_a_writer_that_could_not_close_says_why_and_has_nothing_to_abort(
    s3: S3Process,
) -> None:
    async with HttpFaults(s3.port) as proxy:
        store = open_store("s3://bucket/refused", KEYS | {"endpoint": proxy.url})
        proxy.add(Rule(method="PUT", answer=403))
        writer = await store.put_stream("o")
        await writer.write(b"x")
        with pytest.raises(AccessDenied):
            await writer.close()
        await writer.abort()


@pytest.mark.parametrize(
    "rule",
    [
        Rule(contains="uploads", answer=500),
        Rule(contains="uploads", cut="response", cut_after=40),
        Rule(contains="uploads", lose_answer=True),
        Rule(contains="uploads", answer=200, body="<Listing><Upload>"),
        Rule(contains="uploads", answer=200, body="<Listing><Upload></Upload></Listing>"),
    ],
    ids=["error", "cut", "no answer", "half a listing", "no time"],
)
async def test_a_store_that_fails_meanwhile_is_unavailable(s3: S3Process, rule: Rule) -> None:
    async with HttpFaults(s3.port) as proxy:
        store = open_store("s3://bucket/failing", KEYS | {"endpoint": proxy.url})
        proxy.add(replace(rule))
        with pytest.raises(StoreUnavailable):
            await store.sweep_unfinished(0.0)


async def test_a_signature_that_the_store_checks_is_sent_to_the_right_place(s3: S3Process) -> None:
    async with HttpFaults(s3.port) as proxy:
        store = open_store("s3://bucket/asked", KEYS | {"endpoint": proxy.url})
        await store.sweep_unfinished(0.0)
        assert [each.target for each in proxy.seen] == ["/bucket?prefix=asked%2F&uploads="]
