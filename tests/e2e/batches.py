"""Batches through the official client."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from typing import Any

import openai
from openai.types import Batch

from tests.e2e.stack import MODEL

TERMINAL = {"completed", "failed", "expired", "cancelled"}
ENDED_WITHIN_S = 100.0
POLL_S = 0.1
ENDPOINT = "/v1/chat/completions"


def chat_line(custom_id: str, text: str, **body: Any) -> str:
    """One greedy request; one token is answered unless the body says otherwise."""
    fields = {
        "model": MODEL,
        "messages": [{"role": "user", "content": text}],
        "max_tokens": 1,
        "temperature": 0,
    }
    request = {"custom_id": custom_id, "method": "POST", "url": ENDPOINT, "body": fields | body}
    return json.dumps(request)


async def submit(client: openai.AsyncOpenAI, lines: Iterable[str]) -> Batch:
    content = "".join(f"{line}\n" for line in lines).encode()
    return await submit_bytes(client, content)


async def submit_bytes(client: openai.AsyncOpenAI, content: bytes) -> Batch:
    file = await client.files.create(file=("in.jsonl", content), purpose="batch")
    return await client.batches.create(
        input_file_id=file.id, endpoint=ENDPOINT, completion_window="24h"
    )


async def ended(
    client: openai.AsyncOpenAI, batch: Batch, within_s: float = ENDED_WITHIN_S
) -> Batch:
    """The batch in its terminal state. A router that is being restarted is asked again."""
    async with asyncio.timeout(within_s):
        while True:
            try:
                batch = await client.batches.retrieve(batch.id)
            except (openai.APIConnectionError, openai.InternalServerError):
                await asyncio.sleep(POLL_S)
                continue
            if batch.status in TERMINAL:
                return batch
            await asyncio.sleep(POLL_S)


async def content(client: openai.AsyncOpenAI, file_id: str | None) -> list[dict[str, Any]]:
    """The file's lines, in its order; none where there is no file."""
    if file_id is None:
        return []
    answer = await client.files.content(file_id)
    return [json.loads(line) for line in answer.content.split(b"\n") if line]


def ids(lines: Iterable[dict[str, Any]]) -> list[str]:
    return sorted(line["custom_id"] for line in lines)
