"""The one way from a prepared call to the pieces of its answer.

Plain and streamed requests and lines of batches all read the same events:

    Opened, then Text and Finished of each choice as they come, then Ended

or an exception instead of the rest. Closing the events early (`aclosing`) cancels the steps down
to the engine.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass

from impala.common.v1 import common_pb2
from impala.modelserver.v1 import modelserver_pb2
from impala.scheduler.v1 import scheduler_pb2
from libs.clock import Clock
from libs.errors import Aborted, Internal, InvalidArgument
from services.router.answer import Answer, Scored
from services.router.call import BatchOrigin
from services.router.core.params import field_of
from services.router.core.responses import FinishReason, TokenLogprob, Usage
from services.router.meter import Meter
from services.router.prepare import Prepared, PreparedPrompt
from services.router.steps import Running, StepRequest, Steps

COALESCE_S = 0.25
_WINDOWS = {
    "asap": common_pb2.WINDOW_ASAP,
    "standard": common_pb2.WINDOW_STANDARD,
    "flex": common_pb2.WINDOW_FLEX,
    "batch": common_pb2.WINDOW_BATCH,
}
_MAX_MERGED = 256


@dataclass(frozen=True, slots=True)
class Opened:
    """A server has begun. `weight_version` names the weights: `<seq>-<digest's head>`."""

    weight_version: str
    trace_id: str


@dataclass(frozen=True, slots=True)
class Text:
    """More of a choice."""

    index: int
    text: str
    logprobs: tuple[TokenLogprob, ...]


@dataclass(frozen=True, slots=True)
class Finished:
    index: int
    reason: FinishReason


@dataclass(frozen=True, slots=True)
class Ended:
    usage: Usage


Event = Opened | Text | Finished | Ended


class Pipeline:
    def __init__(self, steps: Steps, clock: Clock, meter: Meter, router_id: str) -> None:
        self._steps = steps
        self._clock = clock
        self._meter = meter
        self._router_id = router_id

    async def run(self, prepared: Prepared, *, streamed: bool) -> AsyncGenerator[Event, None]:
        """streamed: tokens are wanted as they come."""
        runs = [
            _StepRun(self, prepared, number, prompt, streamed)
            for number, prompt in enumerate(prepared.prompts)
        ]
        usage = Usage(0, 0, 0)
        opened = False
        source = runs[0].events() if len(runs) == 1 else _merged(runs)
        async with contextlib.aclosing(source) as events:
            async for event in events:
                match event:
                    case Opened():
                        if not opened:
                            opened = True
                            yield event
                    case Ended(part):
                        usage = _sum(usage, part)
                    case _:
                        yield event
        yield Ended(usage)


class _StepRun:
    """One prompt's step. Its choices are numbered after those of the prompts before."""

    def __init__(
        self,
        pipeline: Pipeline,
        prepared: Prepared,
        number: int,
        prompt: PreparedPrompt,
        streamed: bool,
    ) -> None:
        self._steps = pipeline._steps
        self._clock = pipeline._clock
        self._meter = pipeline._meter
        self._router_id = pipeline._router_id
        self._prepared = prepared
        self._number = number
        self._prompt = prompt
        self._streamed = streamed
        request = prepared.request
        self._first_index = number * request.n
        self._answers = [
            Answer(prepared.text_model.tokenizer, request.stop, request.min_tokens)
            for _ in range(request.n)
        ]
        self._open = set(range(request.n))
        self._end_tokens = 0
        self._started = self._clock.now()
        self._first_at: float | None = None
        self._last_at: float | None = None

    async def events(self) -> AsyncGenerator[Event, None]:
        """A field that the engine refuses is told by its name in the request."""
        try:
            async with contextlib.aclosing(self._events()) as events:
                async for event in events:
                    yield event
        except InvalidArgument as error:
            field = field_of(self._prepared.request, error.field)
            raise InvalidArgument(error.message, error.reason, field) from error

    async def _events(self) -> AsyncGenerator[Event, None]:
        step_id = f"{self._prepared.call.request_id}-{self._number}"
        request = self._step_request()
        usage: Usage | None = None
        async with contextlib.aclosing(self._steps.run(step_id, request)) as messages:
            async for running, message in messages:
                if message.HasField("started"):
                    if running.placement.self_placed:
                        self._meter.self_placed.labels(self._prepared.request.model).inc()
                    yield _opened(running, message.started)
                self._time(message)
                for delta in message.deltas:
                    for event in self._take(running, delta):
                        yield event
                if message.HasField("done"):
                    usage = self._done(running, message.done)
        if usage is None or self._open:
            raise Internal("The server ended the step before its choices.", "CHOICE_NOT_ENDED")
        yield Ended(usage)

    def _take(self, running: Running, delta: modelserver_pb2.ChoiceDelta) -> list[Event]:
        """The events of one delta; a choice whose stop string came is ended at the server."""
        if delta.index not in self._open:
            return []
        answer = self._answers[delta.index]
        index = self._first_index + delta.index
        tokens, scored = _sampled(delta)
        piece = answer.push(tokens, scored)
        events: list[Event] = []
        if piece.text or piece.logprobs:
            events.append(Text(index, piece.text, piece.logprobs))
        if answer.stopped:
            if not delta.finish_reason:
                self._steps.stop_choice(running, delta.index)
            self._open.discard(delta.index)
            return [*events, Finished(index, "stop")]
        self._end_tokens += len(delta.tokens) - len(tokens)
        if delta.finish_reason:
            rest = answer.finish()
            if rest.text or rest.logprobs:
                events.append(Text(index, rest.text, rest.logprobs))
            self._open.discard(delta.index)
            # The detokenizer's last characters may have completed a stop string.
            reason = "stop" if answer.stopped else _reason(delta.finish_reason)
            events.append(Finished(index, reason))
        return events

    def _time(self, message: modelserver_pb2.GenerateResponse) -> None:
        if not any(delta.tokens for delta in message.deltas):
            return
        now = self._clock.now()
        labels = (self._prepared.request.model, self._kind)
        if self._first_at is None:
            self._first_at = now
        elif self._streamed and self._last_at is not None:
            self._meter.itl.labels(*labels).observe(now - self._last_at)
        self._last_at = now

    def _done(self, running: Running, done: modelserver_pb2.Done) -> Usage:
        """Books the step's times. Where tokens came all at once the server's own count."""
        labels = (self._prepared.request.model, self._kind)
        now = self._clock.now()
        total = now - self._started
        first = (self._first_at or now) - self._started
        if not self._streamed and done.first_token_s:
            first = min(total, running.waited_s + done.first_token_s)
        tokens = self._completion_tokens
        if tokens:
            self._meter.ttft.labels(*labels).observe(first)
        per_choice = tokens / max(1, self._prepared.request.n)
        if per_choice > 1:
            self._meter.tpot.labels(*labels).observe((total - first) / (per_choice - 1))
        self._meter.duration.labels(*labels).observe(total)
        for kind, count in (
            ("prompt", done.usage.prompt_tokens),
            ("cached", done.usage.cached_tokens),
            ("completion", tokens),
        ):
            self._meter.tokens.labels(*labels, kind).inc(count)
        return Usage(done.usage.prompt_tokens, tokens, done.usage.cached_tokens)

    @property
    def _completion_tokens(self) -> int:
        """Tokens of the answers, end tokens included. The server's own count has also what it
        sampled before it heard that a stop string was found here, which depends on timing."""
        return sum(answer.tokens for answer in self._answers) + self._end_tokens

    @property
    def _kind(self) -> str:
        return "batch" if self._prepared.call.origin else "single"

    def _step_request(self) -> StepRequest:
        call = self._prepared.call
        return StepRequest(
            fleet=self._prepared.fleet,
            acquire=self._acquire(),
            generate=self._generate(),
            within_s=call.within_s,
            may_self_place=call.origin is None,
        )

    def _acquire(self) -> scheduler_pb2.AcquireRequest:
        prepared, call, prompt = self._prepared, self._prepared.call, self._prompt
        return scheduler_pb2.AcquireRequest(
            account=call.account,
            job_id=prepared.job_id,
            model=prepared.request.model,
            content_hashes=prompt.hashes,
            prompt_tokens=len(prompt.prompt.tokens),
            max_tokens=prompt.max_tokens,
            n=prepared.request.n,
            window=_WINDOWS[prepared.window],
            deadline_unix_ms=call.deadline_unix_ms,
            trace_id=call.trace.trace_id,
            parent_trace_id=call.trace.parent_trace_id,
            tool=call.trace.tool,
            spans=[
                common_pb2.MessageSpan(
                    role=span.role, kind=span.kind, start_token=span.start_token, hash=span.hash
                )
                for span in prompt.prompt.spans
            ],
            run_id=call.origin.run_id if call.origin else "",
            router_id=self._router_id,
        )

    def _generate(self) -> modelserver_pb2.GenerateRequest:
        prepared, request, prompt = self._prepared, self._prepared.request, self._prompt
        generate = modelserver_pb2.GenerateRequest(
            model=request.model,
            prompt=prompt.prompt.tokens,
            account_salt=prepared.salt,
            n=request.n,
            sampling=_sampling(prepared),
            stopping=modelserver_pb2.Stopping(
                max_tokens=prompt.max_tokens,
                min_tokens=request.min_tokens,
                ignore_eos=request.ignore_eos,
            ),
            emission=self._emission(),
            coalesce_s=0.0 if self._streamed else COALESCE_S,
            window=_WINDOWS[prepared.window],
            owner=_owner(prepared, prepared.call.origin),
        )
        if request.logprobs:
            generate.logprobs = request.top_logprobs
        return generate

    def _emission(self) -> modelserver_pb2.Emission.ValueType:
        if self._streamed:
            return modelserver_pb2.EMISSION_EACH
        # A stop string is found here, so its choice must be seen while it can still be stopped.
        if self._prepared.request.stop:
            return modelserver_pb2.EMISSION_COALESCED
        return modelserver_pb2.EMISSION_FINAL


def _sampling(prepared: Prepared) -> modelserver_pb2.Sampling:
    params = prepared.request.sampling
    sampling = modelserver_pb2.Sampling(
        temperature=params.temperature,
        top_p=params.top_p,
        top_k=params.top_k,
        min_p=params.min_p,
        presence_penalty=params.presence_penalty,
        frequency_penalty=params.frequency_penalty,
        repetition_penalty=params.repetition_penalty,
        logit_bias=dict(params.logit_bias),
    )
    if params.seed is not None:
        sampling.seed = params.seed
    return sampling


def _owner(prepared: Prepared, origin: BatchOrigin | None) -> modelserver_pb2.Owner:
    return modelserver_pb2.Owner(
        account=prepared.call.account,
        job_id=prepared.job_id,
        run_id=origin.run_id if origin else "",
        line=origin.line if origin else 0,
    )


def _opened(running: Running, started: modelserver_pb2.Started) -> Opened:
    digest = started.weights.digest.hex()[:12]
    version = f"{started.weights.seq}-{digest}" if digest else str(started.weights.seq)
    return Opened(version, running.placement.trace_id)


def _sampled(delta: modelserver_pb2.ChoiceDelta) -> tuple[list[int], list[Scored]]:
    """Tokens of the text and their logprobs: an ending stop token is not part of either."""
    tokens = list(delta.tokens)
    if delta.stopped_by_token and tokens:
        tokens.pop()
    scored = [
        Scored(
            each.chosen.token, each.chosen.logprob, [(top.token, top.logprob) for top in each.top]
        )
        for each in delta.logprobs[: len(tokens)]
    ]
    return tokens, scored


def _reason(engine: common_pb2.FinishReason.ValueType) -> FinishReason:
    if engine == common_pb2.FINISH_REASON_LENGTH:
        return "length"
    if engine == common_pb2.FINISH_REASON_STOP:
        return "stop"
    raise Aborted("The server gave the step up before its end.", "STEP_ABORTED")


def _sum(one: Usage, other: Usage) -> Usage:
    return Usage(
        one.prompt_tokens + other.prompt_tokens,
        one.completion_tokens + other.completion_tokens,
        one.cached_tokens + other.cached_tokens,
    )


async def _merged(runs: Sequence[_StepRun]) -> AsyncGenerator[Event, None]:
    """Events of all steps as they come; the first failure ends them all."""
    queue: asyncio.Queue[Event | BaseException | None] = asyncio.Queue(_MAX_MERGED)

    async def pump(run: _StepRun) -> None:
        try:
            async with contextlib.aclosing(run.events()) as events:
                async for event in events:
                    await queue.put(event)
        except Exception as error:  # noqa: BLE001  # carried over to the reader
            await queue.put(error)
        else:
            await queue.put(None)

    tasks = [asyncio.create_task(pump(run)) for run in runs]
    try:
        left = len(tasks)
        while left:
            event = await queue.get()
            if isinstance(event, BaseException):
                raise event
            if event is None:
                left -= 1
            else:
                yield event
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
