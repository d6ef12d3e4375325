"""Answers in OpenAI's forms, whole or in chunks, from the pipeline's events."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import Any

from services.router.call import Call
from services.router.core import responses
from services.router.core.params import CHAT
from services.router.core.responses import Choice, FinishReason, ReplyHead, TokenLogprob, Usage
from services.router.identity import Maker
from services.router.meter import Meter
from services.router.pipeline import Ended, Finished, Opened, Pipeline, Text
from services.router.prepare import Prepared, Preparer

Json = dict[str, Any]

# What the official client's types allow in an answer.
_ECHOED_TIERS = frozenset({"auto", "default", "flex", "scale", "priority"})


@dataclass(frozen=True, slots=True)
class Reply:
    """A whole answer."""

    body: Json
    weight_version: str
    trace_id: str
    usage: Usage


@dataclass(slots=True)
class _Parts:
    """One choice as it grows."""

    text: list[str] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    reason: FinishReason | None = None
    chars: int = 0


class Completions:
    """/v1/chat/completions and /v1/completions."""

    def __init__(self, preparer: Preparer, pipeline: Pipeline, maker: Maker, meter: Meter) -> None:
        self._preparer = preparer
        self._pipeline = pipeline
        self._maker = maker
        self._meter = meter

    async def prepare(self, call: Call) -> Prepared:
        """Everything that can be refused before a server is asked."""
        return await self._preparer.prepare(call)

    async def complete(self, prepared: Prepared) -> Reply:
        """The whole answer. Cancelling the task cancels the work down to the engine."""
        count = prepared.request.n * len(prepared.prompts)
        parts = [_Parts() for _ in range(count)]
        opened, usage = Opened("", ""), Usage(0, 0, 0)
        async with self._counted(prepared):
            events = self._pipeline.run(prepared, streamed=False)
            async with contextlib.aclosing(events) as source:
                async for event in source:
                    match event:
                        case Opened():
                            opened = event
                        case Text(index, text, logprobs):
                            parts[index].text.append(text)
                            parts[index].logprobs.extend(logprobs)
                        case Finished(index, reason):
                            parts[index].reason = reason
                        case Ended(total):
                            usage = total
        head = self._head(prepared, opened.weight_version)
        wants_logprobs = prepared.request.logprobs
        choices = [_choice(i, each, wants_logprobs) for i, each in enumerate(parts)]
        chat = prepared.request.endpoint == CHAT
        form = responses.chat_completion if chat else responses.text_completion
        return Reply(form(head, choices, usage), opened.weight_version, opened.trace_id, usage)

    async def chunks(self, prepared: Prepared) -> AsyncGenerator[Json, None]:
        """The answer's chunks in order; a failure is raised, and no end is faked."""
        async with self._counted(prepared):
            events = self._pipeline.run(prepared, streamed=True)
            async with contextlib.aclosing(events) as source:
                writer: _ChatChunks | _TextChunks | None = None
                async for event in source:
                    if isinstance(event, Opened):
                        head = self._head(prepared, event.weight_version)
                        writer = _writer(head, prepared)
                    assert writer is not None, "a server opens before it says anything"
                    for chunk in writer.write(event):
                        yield chunk

    def count(self, call: Call, status: int) -> None:
        """One request has ended; `status` as HTTP would say it."""
        model = call.body.get("model")
        known = isinstance(model, str) and status != 404
        # A made-up name must not become a label.
        label = str(model)[:128] if known else ""
        kind = "batch" if call.origin else "single"
        self._meter.requests.labels(label, kind, str(status)).inc()

    def _head(self, prepared: Prepared, weight_version: str) -> ReplyHead:
        kind = "chatcmpl" if prepared.request.endpoint == CHAT else "cmpl"
        tier = prepared.request.service_tier
        return ReplyHead(
            id=f"{kind}-{prepared.call.request_id.removeprefix('req_')}",
            created=self._maker.unix_s(),
            model=prepared.request.model,
            weight_version=weight_version,
            service_tier=tier if tier in _ECHOED_TIERS else None,
        )

    @contextlib.asynccontextmanager
    async def _counted(self, prepared: Prepared) -> AsyncGenerator[None, None]:
        running = self._meter.running.labels("batch" if prepared.call.origin else "single")
        running.inc()
        try:
            yield
        finally:
            running.dec()


def _choice(index: int, parts: _Parts, wants_logprobs: bool) -> Choice:
    assert parts.reason is not None, "the pipeline ends only after every choice"
    return Choice(
        index=index,
        text="".join(parts.text),
        finish_reason=parts.reason,
        logprobs=tuple(parts.logprobs) if wants_logprobs else None,
    )


def _writer(head: ReplyHead, prepared: Prepared) -> _ChatChunks | _TextChunks:
    chat = prepared.request.endpoint == CHAT
    return (_ChatChunks if chat else _TextChunks)(head, prepared)


class _ChatChunks:
    """Role first, text, then the finish; usage once at the end where it is wanted."""

    def __init__(self, head: ReplyHead, prepared: Prepared) -> None:
        self._head = head
        self._count = prepared.request.n * len(prepared.prompts)
        self._wants_logprobs = prepared.request.logprobs
        self._wants_usage = prepared.request.include_usage
        self._untold = set(range(self._count)) if self._wants_logprobs else set()
        """Choices without logprobs so far; one that ends so has an empty list, as in a whole
        answer."""

    def write(self, event: Opened | Text | Finished | Ended) -> list[Json]:
        match event:
            case Opened():
                return [responses.chat_role_chunk(self._head, i) for i in range(self._count)]
            case Text(index, text, logprobs):
                told = logprobs if self._wants_logprobs else None
                self._untold.discard(index)
                return [responses.chat_text_chunk(self._head, index, text, told)]
            case Finished(index, reason):
                told = () if index in self._untold else None
                return [responses.chat_finish_chunk(self._head, index, reason, told)]
            case Ended(usage):
                if not self._wants_usage:
                    return []
                return [responses.chat_usage_chunk(self._head, usage)]


class _TextChunks:
    """Text, then the finish; usage once at the end where it is wanted."""

    def __init__(self, head: ReplyHead, prepared: Prepared) -> None:
        self._head = head
        self._offsets = [0] * (prepared.request.n * len(prepared.prompts))
        self._wants_logprobs = prepared.request.logprobs
        self._untold = set(range(len(self._offsets))) if self._wants_logprobs else set()
        self._wants_usage = prepared.request.include_usage

    def write(self, event: Opened | Text | Finished | Ended) -> list[Json]:
        match event:
            case Opened():
                return []
            case Text(index, text, logprobs):
                offset = self._offsets[index]
                told = logprobs if self._wants_logprobs else None
                # Offsets count as in the whole answer: over the tokens' own texts.
                self._untold.discard(index)
                self._offsets[index] += sum(len(entry.token) for entry in logprobs)
                return [responses.text_chunk(self._head, index, text, None, told, offset)]
            case Finished(index, reason):
                told = () if index in self._untold else None
                return [responses.text_chunk(self._head, index, "", reason, told)]
            case Ended(usage):
                if not self._wants_usage:
                    return []
                return [responses.text_usage_chunk(self._head, usage)]
