"""A client of one router, and what the life of a batch may look like to it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx

ENDPOINT = "/v1/chat/completions"
TERMINAL = frozenset({"completed", "failed", "expired", "cancelled"})
WITHIN_S = 150.0
POLL_S = 0.1
_ORDER = {"validating": 0, "in_progress": 1, "cancelling": 2, "finalizing": 2}


def chat_line(model: str, custom_id: str, text: str, tokens: int) -> str:
    body = {
        "model": model,
        "messages": [{"role": "user", "content": text}],
        "max_tokens": tokens,
        "temperature": 0,
        "ignore_eos": True,
    }
    line = {"custom_id": custom_id, "method": "POST", "url": ENDPOINT, "body": body}
    return json.dumps(line) + "\n"


@dataclass
class Api:
    """Asks again while the router is away. Every poll is checked against what was shown before."""

    http: httpx.AsyncClient
    _shown: dict[str, dict[str, Any]] = field(default_factory=dict)

    async def submit(self, content: str, **fields: Any) -> str:
        """The new batch's id."""
        files = {"file": ("in.jsonl", content.encode())}
        file = await self.ask("POST", "/v1/files", files=files, data={"purpose": "batch"})
        body = {"input_file_id": file["id"], "endpoint": ENDPOINT, "completion_window": "24h"}
        return str((await self.ask("POST", "/v1/batches", json=body | fields))["id"])

    async def look(self, batch_id: str) -> dict[str, Any]:
        """The batch now. Counts never fall or exceed the total, which they sum to in the end; a
        status never goes back, and a terminal one stays."""
        now = await self.ask("GET", f"/v1/batches/{batch_id}")
        before = self._shown.get(batch_id, now)
        counts, earlier = now["request_counts"], before["request_counts"]
        assert counts["completed"] >= earlier["completed"], (earlier, counts)
        assert counts["failed"] >= earlier["failed"], (earlier, counts)
        assert earlier["total"] in (0, counts["total"]), (earlier, counts)
        answered = counts["completed"] + counts["failed"]
        assert answered <= counts["total"], counts
        if now["status"] in TERMINAL:
            assert answered == counts["total"], counts
        if before["status"] in TERMINAL:
            assert now["status"] == before["status"]
        assert _ORDER.get(now["status"], 3) >= _ORDER.get(before["status"], 3), (before, now)
        self._shown[batch_id] = now
        return now

    async def until(
        self, batch_id: str, holds: Callable[[dict[str, Any]], bool], within_s: float = WITHIN_S
    ) -> dict[str, Any]:
        async with asyncio.timeout(within_s):
            while True:
                batch = await self.look(batch_id)
                if holds(batch):
                    return batch
                await asyncio.sleep(POLL_S)

    async def recorded(self, batch_id: str, lines: int) -> dict[str, Any]:
        """Once so many lines have an outcome."""

        def holds(batch: dict[str, Any]) -> bool:
            counts = batch["request_counts"]
            return bool(counts["completed"] + counts["failed"] >= lines)

        return await self.until(batch_id, holds)

    async def ended(self, batch_id: str, within_s: float = WITHIN_S) -> dict[str, Any]:
        return await self.until(batch_id, lambda batch: batch["status"] in TERMINAL, within_s)

    async def lines(self, file_id: str | None) -> list[bytes]:
        if file_id is None:
            return []
        content = await self.send("GET", f"/v1/files/{file_id}/content")
        return content.content.splitlines()

    async def results(self, batch_id: str, after: int = 0) -> list[bytes]:
        """What is recorded now."""
        path = f"/imp/v1/batches/{batch_id}/results"
        return (await self.send("GET", path, params={"after": str(after)})).content.splitlines()

    async def ask(self, method: str, path: str, **request: Any) -> dict[str, Any]:
        found: dict[str, Any] = (await self.send(method, path, **request)).json()
        return found

    async def send(self, method: str, path: str, **request: Any) -> httpx.Response:
        async with asyncio.timeout(WITHIN_S):
            while True:
                try:
                    answer = await self.http.request(method, path, **request)
                except httpx.TransportError:
                    await asyncio.sleep(POLL_S)
                    continue
                if answer.status_code != 503:
                    assert answer.is_success, answer.text
                    return answer
                await asyncio.sleep(POLL_S)


@asynccontextmanager
async def api_of(url: str) -> AsyncIterator[Api]:
    async with httpx.AsyncClient(trust_env=False, base_url=url, timeout=60) as http:
        yield Api(http)


def ids(lines: Sequence[bytes]) -> list[str]:
    return sorted(str(json.loads(line)["custom_id"]) for line in lines)


def answers(lines: Sequence[bytes]) -> dict[str, str]:
    """custom_id -> the text answered."""
    found = {}
    for line in map(json.loads, lines):
        message = line["response"]["body"]["choices"][0]["message"]
        found[str(line["custom_id"])] = str(message["content"])
    return found
