"""A client that does not give up, and writes down all that it is told."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any, TypeVar

import grpc
import httpx

from impala.router.v1 import router_pb2, router_pb2_grpc
from libs.errors import ImpalaError
from libs.rpc import connect, stream
from tests.robustness.history import (
    Created,
    Delivered,
    Event,
    Expected,
    History,
    Line,
    Polled,
    Read,
    Unclear,
    Usage,
)
from tests.robustness.model import TERMINAL
from tests.robustness.work import ENDPOINT

T = TypeVar("T")

POLL_S = 0.1
ANSWER_WITHIN_S = 3.0
LOOK_WITHIN_S = 1.0
"""Of one call; a paused router answers nothing, and the other one is asked."""
RETRY_S = 0.1
TRY_AGAIN = frozenset({429, 502, 503, 504})


class Recorder:
    """One round's. `moved` is told after every event."""

    def __init__(self, http: Mapping[str, str], grpc_api: Mapping[str, str], batches: int) -> None:
        """batches: how many are to be made."""
        self.history = History()
        self._batches = self._open = batches
        self.moved = asyncio.Condition()
        self.promised: set[str] = set()
        self._http = [
            httpx.AsyncClient(trust_env=False, timeout=ANSWER_WITHIN_S, base_url=url)
            for url in http.values()
        ]
        self._channels: list[grpc.aio.Channel] = [connect(each) for each in grpc_api.values()]
        self._turn = 0
        self._results: dict[str, int] = {}
        self._counts: dict[str, tuple[int, str]] = {}

    async def aclose(self) -> None:
        for client in self._http:
            await client.aclose()
        for channel in self._channels:
            await channel.close()

    @property
    def recorded(self) -> int:
        """Lines of all batches that the last polls counted."""
        return sum(count for count, _ in self._counts.values())

    @property
    def all_made(self) -> bool:
        return len(self._counts) == self._batches

    @property
    def at_work(self) -> bool:
        """Some batch has not been followed to its end."""
        return self._open > 0

    async def settle(self) -> None:
        """Nothing is expected of one batch any more."""
        self._open -= 1
        async with self.moved:
            self.moved.notify_all()

    async def until(self, holds: Callable[[], bool]) -> None:
        async with self.moved:
            await self.moved.wait_for(holds)

    async def note(self, event: Event) -> None:
        self.history.events.append(event)
        async with self.moved:
            self.moved.notify_all()

    async def submit(
        self, content: bytes, key: str, expected: Expected, window: str = "24h"
    ) -> str:
        """The id of the batch, made once however often it had to be asked for."""
        file = await self._ask(
            "POST",
            "/v1/files",
            files={"file": ("in.jsonl", content)},
            data={"purpose": "batch"},
        )
        body = {"input_file_id": file["id"], "endpoint": ENDPOINT, "completion_window": window}
        made = await self._ask("POST", "/v1/batches", json=body, headers={"Idempotency-Key": key})
        batch = str(made["id"])
        self.promised.add(batch)
        self.history.expected[batch] = expected
        self._results[batch] = 0
        self._counts[batch] = (0, "validating")
        await self.note(Created(time.monotonic(), batch))
        return batch

    async def watch(self, batch: str) -> None:
        """To its end: polls, and reads what was recorded meanwhile; then all of it again, and its
        files."""
        while True:
            seen = self._counts[batch][0]
            shown = await self.look(batch)
            count, status = self._counts[batch]
            if status in TERMINAL:
                break
            if count > seen:
                await self._read(batch, self._results[batch])
            await asyncio.sleep(POLL_S)
        await self._read(batch, 0)
        lines = [
            *await self._file(shown["output_file_id"], is_error=False),
            *await self._file(shown["error_file_id"], is_error=True),
        ]
        told = shown["usage"]
        cached = told["input_tokens_details"]["cached_tokens"]
        usage = Usage(told["input_tokens"], cached, told["output_tokens"])
        await self.note(Delivered(time.monotonic(), batch, tuple(lines), usage))
        await self.look(batch)

    async def cancel(self, batch: str, progress: float) -> None:
        """Asks for it once that share of the batch's lines is recorded; it may have ended."""
        expected = self.history.expected[batch]
        wanted = progress * len(expected.answers)
        await self.until(lambda: self._counts[batch][0] >= wanted or not self.at_work)
        # An answer that is lost may be that of a cancel which took effect.
        self.history.expected[batch] = replace(expected, cancelled=True)
        await self._send("POST", f"/v1/batches/{batch}/cancel", also=(409,))

    async def look(self, batch: str) -> dict[str, Any]:
        """The batch object, written down."""
        shown = await self._ask("GET", f"/v1/batches/{batch}", timeout=LOOK_WITHIN_S)
        counts = shown["request_counts"]
        total, completed, failed = counts["total"], counts["completed"], counts["failed"]
        self._counts[batch] = (completed + failed, shown["status"])
        await self.note(Polled(time.monotonic(), batch, shown["status"], total, completed, failed))
        return shown

    async def look_at_all(self) -> None:
        """Every batch that was promised, at the same moment."""
        await asyncio.gather(*(self.look(batch) for batch in self.promised))

    async def read_again(self) -> None:
        """Everything that was read, from the first result on."""
        for batch in self.promised:
            await self._read(batch, 0)

    async def batches(self) -> set[str]:
        """The newest hundred that the cluster has."""
        page = await self._ask("GET", "/v1/batches", params={"limit": "100"})
        return {str(each["id"]) for each in page["data"]}

    async def _read(self, batch: str, after: int) -> None:
        """Results from there on; asks until an answer comes to its end."""
        whole = False
        while not whole:
            at, known, lines = time.monotonic(), self._results[batch], []
            stub = router_pb2_grpc.BatchesStub(self._next(self._channels))
            request = router_pb2.ResultsRequest(batch_id=batch, after=after)
            try:
                async for line in stream(stub.Results, request, timeout_s=LOOK_WITHIN_S):
                    lines.append(Line(line.line_json, line.is_error))
                whole = True
            except ImpalaError:
                await asyncio.sleep(RETRY_S)
            self._results[batch] = max(self._results[batch], after + len(lines))
            await self.note(Read(at, batch, after, tuple(lines), known, whole))

    async def _file(self, file_id: str | None, *, is_error: bool) -> list[Line]:
        if file_id is None:
            return []
        response = await self._send("GET", f"/v1/files/{file_id}/content")
        return [Line(text, is_error) for text in response.text.split("\n") if text]

    async def _ask(self, method: str, path: str, **request: Any) -> dict[str, Any]:
        answer: dict[str, Any] = (await self._send(method, path, **request)).json()
        return answer

    async def _send(
        self, method: str, path: str, *, also: Collection[int] = (), **request: Any
    ) -> httpx.Response:
        """Asks one router after the other until one answers well, or with a status of `also`; for
        ever, so give it a deadline."""
        while True:
            try:
                response = await self._next(self._http).request(method, path, **request)
            except httpx.TransportError:
                await asyncio.sleep(RETRY_S)
                continue
            if response.is_success or response.status_code in also:
                return response
            if response.status_code not in TRY_AGAIN:
                answer = f"{response.status_code} {response.text[:300]}"
                await self.note(Unclear(time.monotonic(), f"{method} {path}", answer))
            await asyncio.sleep(RETRY_S)

    def _next(self, routers: list[T]) -> T:
        self._turn += 1
        return routers[self._turn % len(routers)]
