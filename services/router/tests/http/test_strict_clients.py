"""The official client, synchronous and asynchronous, refuses no answer of the whole surface.

Strict validation raises on every answer, and every chunk of a stream, that is not by its types.
Streams of text completions are left out: the client's own type has no null `finish_reason`, which
every chunk but the last has, OpenAI's too (test_completions.py reads them).
"""

from __future__ import annotations

import asyncio
from typing import Any

import openai
import pytest
from openai.pagination import AsyncCursorPage, AsyncPage, SyncCursorPage, SyncPage
from openai.types import Batch, Completion, FileDeleted, FileObject, Model
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from services.router.tests.conftest import GREETING, MODEL, Stage

CHAT: dict[str, Any] = {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}]}
LOGPROBS = {"logprobs": True, "top_logprobs": 2}
STREAM = {"stream": True, "stream_options": {"include_usage": True}}
LINE = b'{"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": {}}\n'
BATCH = {"endpoint": "/v1/chat/completions", "completion_window": "24h", "metadata": {"k": "v"}}


def check_stream(chunks: list[Any]) -> None:
    assert all(type(chunk) is ChatCompletionChunk for chunk in chunks)
    *told, last = chunks
    assert "".join(chunk.choices[0].delta.content or "" for chunk in told) == GREETING
    assert last.choices == []
    assert last.usage.completion_tokens == len(GREETING) + 1


def check_models(listed: Any, page: Any, one: Any) -> None:
    assert type(listed) is page
    assert [type(each) for each in listed.data] == [Model] == [type(one)]
    assert listed.data == [one]


def use_sync(client: openai.OpenAI) -> None:
    assert type(client.chat.completions.create(**CHAT, n=2, **LOGPROBS)) is ChatCompletion
    check_stream(list(client.chat.completions.create(**CHAT, **STREAM, **LOGPROBS)))
    assert type(client.completions.create(model=MODEL, prompt="Say", logprobs=2)) is Completion
    check_models(client.models.list(), SyncPage[Model], client.models.retrieve(MODEL))

    file = client.files.create(file=("in.jsonl", LINE), purpose="batch")
    assert type(file) is type(client.files.retrieve(file.id)) is FileObject
    files = client.files.list()
    assert (type(files), files.data) == (SyncCursorPage[FileObject], [file])
    assert client.files.content(file.id).content == LINE

    batch = client.batches.create(input_file_id=file.id, **BATCH)
    assert type(batch) is type(client.batches.retrieve(batch.id)) is Batch
    batches = client.batches.list(limit=5)
    assert (type(batches), batches.data) == (SyncCursorPage[Batch], [batch])
    assert client.batches.cancel(batch.id).status == "cancelling"

    other = client.files.create(file=LINE, purpose="user_data")
    assert other.filename == "upload"
    assert type(client.files.delete(other.id)) is FileDeleted
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("no-such")


async def use_async(client: openai.AsyncOpenAI) -> None:
    assert type(await client.chat.completions.create(**CHAT, n=2, **LOGPROBS)) is ChatCompletion
    stream = await client.chat.completions.create(**CHAT, **STREAM, **LOGPROBS)
    check_stream([chunk async for chunk in stream])
    text = await client.completions.create(model=MODEL, prompt="Say", logprobs=2)
    assert type(text) is Completion
    check_models(await client.models.list(), AsyncPage[Model], await client.models.retrieve(MODEL))

    file = await client.files.create(file=("in.jsonl", LINE), purpose="batch")
    assert type(file) is type(await client.files.retrieve(file.id)) is FileObject
    files = await client.files.list()
    assert (type(files), files.data) == (AsyncCursorPage[FileObject], [file])
    assert (await client.files.content(file.id)).content == LINE

    batch = await client.batches.create(input_file_id=file.id, **BATCH)
    assert type(batch) is type(await client.batches.retrieve(batch.id)) is Batch
    batches = await client.batches.list(limit=5)
    assert (type(batches), batches.data) == (AsyncCursorPage[Batch], [batch])
    assert (await client.batches.cancel(batch.id)).status == "cancelling"

    other = await client.files.create(file=LINE, purpose="user_data")
    assert type(await client.files.delete(other.id)) is FileDeleted
    with pytest.raises(openai.NotFoundError):
        await client.models.retrieve("no-such")


async def test_the_synchronous_client(stage: Stage) -> None:
    with openai.OpenAI(
        base_url=f"{stage.router.http_url}/v1",
        api_key="none",
        _strict_response_validation=True,
        max_retries=0,
        http_client=openai.DefaultHttpxClient(verify=False),
    ) as client:
        await asyncio.to_thread(use_sync, client)


async def test_the_asynchronous_client(stage: Stage) -> None:
    await use_async(stage.openai())
