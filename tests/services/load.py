"""Clients that keep asking, and write down everything that was not an answer."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
import httpx

from impala.router.v1 import router_pb2, router_pb2_grpc
from tests.services.cluster import MODEL, Member

ENDPOINT = "/v1/chat/completions"
TERMINAL = frozenset({"completed", "failed", "expired", "cancelled"})


def chat(text: str, tokens: int, **fields: Any) -> dict[str, Any]:
    return {
        "model": MODEL,
        "messages": [{"role": "user", "content": text}],
        "max_tokens": tokens,
        "temperature": 0,
        "ignore_eos": True,
        **fields,
    }


@dataclass
class Load:
    """`answered` counts whole answers by kind of client, `failures` says what else came."""

    tokens: int
    answered: dict[str, int] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    stop: bool = False
    pause: asyncio.Event = field(default_factory=asyncio.Event)

    def count(self, kind: str) -> None:
        self.answered[kind] = self.answered.get(kind, 0) + 1

    @property
    def least(self) -> int:
        """Answers of the kind that has fewest."""
        return min(self.answered.values(), default=0)


Ask = Callable[[httpx.AsyncClient, Load, str], Awaitable[None]]


async def plain(client: httpx.AsyncClient, load: Load, text: str) -> None:
    answer = await client.post(ENDPOINT, json=chat(text, load.tokens))
    assert answer.status_code == 200, answer.text
    assert answer.json()["usage"]["completion_tokens"] == load.tokens


async def streamed(client: httpx.AsyncClient, load: Load, text: str) -> None:
    body = chat(text, load.tokens, stream=True, stream_options={"include_usage": True})
    usage = None
    async with client.stream("POST", ENDPOINT, json=body) as answer:
        assert answer.status_code == 200, await answer.aread()
        events = [line async for line in answer.aiter_lines() if line]
    for event in events:
        data = event.removeprefix("data: ")
        if data != "[DONE]":
            chunk = json.loads(data)
            assert "error" not in chunk, chunk
            usage = chunk.get("usage") or usage
    assert events[-1] == "data: [DONE]", events[-1:]
    assert usage is not None and usage["completion_tokens"] == load.tokens


async def streamed_grpc(channel: grpc.aio.Channel, load: Load, text: str) -> None:
    request = router_pb2.CompleteRequest(
        endpoint=ENDPOINT, body_json=json.dumps(chat(text, load.tokens))
    )
    call = router_pb2_grpc.InferenceStub(channel).StreamComplete(request, timeout=120)
    chunks = [json.loads(chunk.chunk_json) async for chunk in call]
    assert chunks[-1]["choices"][0]["finish_reason"] == "length", chunks[-1]


@asynccontextmanager
async def loaded(routers: Sequence[Member], load: Load) -> AsyncIterator[Load]:
    """Two clients of each kind for each router ask until the block is left."""
    async with asyncio.TaskGroup() as group:
        for router in routers:
            for number in range(2):
                for kind, ask in (("plain", plain), ("streamed", streamed)):
                    group.create_task(_http(router, load, kind, ask, number))
                group.create_task(_grpc(router, load, number))
        try:
            yield load
        finally:
            load.stop = True


async def _http(router: Member, load: Load, kind: str, ask: Ask, number: int) -> None:
    async with router.http(120) as client:
        await _repeat(load, kind, lambda text: ask(client, load, text), number)


async def _grpc(router: Member, load: Load, number: int) -> None:
    async with router.channel() as channel:
        await _repeat(load, "grpc", lambda text: streamed_grpc(channel, load, text), number)


async def _repeat(
    load: Load, kind: str, ask: Callable[[str], Awaitable[None]], number: int
) -> None:
    load.answered.setdefault(kind, 0)
    round_ = 0
    while not load.stop:
        round_ += 1
        try:
            await ask(f"{kind} {number} {round_}")
            load.count(kind)
        except (httpx.HTTPError, grpc.aio.AioRpcError, AssertionError) as error:
            load.failures.append(f"{kind}: {type(error).__name__} {error}")
            await asyncio.sleep(0.05)


async def submit(client: httpx.AsyncClient, lines: int, tokens: int) -> str:
    """A batch's id; its lines are l0, l1, ..."""
    line = {"method": "POST", "url": ENDPOINT}
    content = "".join(
        json.dumps({**line, "custom_id": f"l{at}", "body": chat(f"{at}", tokens)}) + "\n"
        for at in range(lines)
    )
    file = await client.post(
        "/v1/files", files={"file": ("in.jsonl", content.encode())}, data={"purpose": "batch"}
    )
    assert file.is_success, file.text
    body = {"input_file_id": file.json()["id"], "endpoint": ENDPOINT, "completion_window": "24h"}
    made = await client.post("/v1/batches", json=body)
    assert made.is_success, made.text
    return str(made.json()["id"])


async def finished(client: httpx.AsyncClient, batch: str, within_s: float = 120) -> dict[str, Any]:
    """The batch in its last state."""
    async with asyncio.timeout(within_s):
        while True:
            found: dict[str, Any] = (await client.get(f"/v1/batches/{batch}")).json()
            if found.get("status") in TERMINAL:
                return found
            await asyncio.sleep(0.1)


async def results(client: httpx.AsyncClient, batch: dict[str, Any]) -> list[str]:
    """The custom_ids of both files, sorted; all lines must have succeeded."""
    assert batch["status"] == "completed", batch
    assert not batch.get("error_file_id"), (
        await client.get(f"/v1/files/{batch['error_file_id']}/content")
    ).text
    content = await client.get(f"/v1/files/{batch['output_file_id']}/content")
    return sorted(json.loads(line)["custom_id"] for line in content.text.splitlines())
