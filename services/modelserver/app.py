"""The model server's shell: steps in, hand-offs from the engine thread out to who waits for them.

One writer: the event loop's thread owns every field here. The engine thread only ever schedules
`_hand_off` on the loop, once an engine step.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass

from libs.clock import Clock
from libs.errors import AlreadyExists, ImpalaError, Internal, ResourceExhausted, Unavailable
from libs.hashing import pack
from libs.obs import METRICS, TTFT_BUCKETS, Metrics
from services.modelserver.core.report_log import ReportLog
from services.modelserver.core.step_watch import StepWatch
from services.modelserver.herd.core.errors import DuplicateSequence, NeverFits
from services.modelserver.herd.core.plan import BatcherStats, FinishReason, Lookup
from services.modelserver.herd.engine.step import StepSpec
from services.modelserver.herd.engine.thread import (
    Add,
    Command,
    End,
    Fetched,
    HandOff,
    Refused,
)
from services.modelserver.ports import FinishedStep, LowerTier, ServedWeights
from services.modelserver.step_stream import StepStream

log = logging.getLogger(__name__)

_FETCH_TIMEOUT_S = 2.0
_RESTART_S = 1.0


class EngineStuck(Exception):
    """An engine step went on for longer than any may."""


@dataclass(frozen=True, slots=True)
class Booking:
    """Who a step is booked to and what is known of it before it runs."""

    grant_id: str = ""
    self_placed: bool = False
    account: str = ""
    job_id: str = ""
    run_id: str = ""
    line: int = 0
    trace_id: str = ""


@dataclass(slots=True)
class Totals:
    """Counters since start."""

    engine_steps: int = 0
    busy_s: float = 0.0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    recent_step_s: float = 0.0


@dataclass(slots=True)
class _Running:
    spec: StepSpec
    booking: Booking
    stream: StepStream
    weight_seq: int


class ModelServerApp:
    """Owns the live steps. `send` hands a command to the engine thread."""

    def __init__(
        self,
        send: Callable[[Command], None],
        weights: ServedWeights,
        *,
        clock: Clock,
        tier: LowerTier | None,
        max_waiting: int,
        idle_stats: BatcherStats,
        metrics: Metrics = METRICS,
    ) -> None:
        self.weights = weights
        self.stats = idle_stats
        self.totals = Totals()
        self.reports: ReportLog[FinishedStep] = ReportLog()
        self.reported = asyncio.Event()
        """Set when there is something to report."""
        self.died = asyncio.Event()
        """Set when the engine thread is gone; nothing can be served any more."""
        self.clock = clock
        self.started = clock.now()
        self._send = send
        self._tier = tier
        self._max_waiting = max_waiting
        self._running: dict[str, _Running] = {}
        self._fetches: set[asyncio.Task[None]] = set()
        self._ttft = metrics.histogram(
            "impala_modelserver_first_token_seconds",
            "From a step's arrival at the engine to its first token.",
            buckets=TTFT_BUCKETS,
        )
        self._steps = metrics.counter(
            "impala_modelserver_steps", "Steps by how they ended.", ("finish",)
        )
        self._tokens = metrics.counter("impala_modelserver_tokens", "Tokens by kind.", ("kind",))

    # ---- calls of the servicer

    def submit(self, spec: StepSpec, booking: Booking) -> StepStream:
        """Hand a step to the engine. Raises AlreadyExists or ResourceExhausted, and then nothing
        was started. The caller must read the stream to its end or call `abandon`."""
        if self.died.is_set():
            raise Unavailable("The server restarts.", "RESTARTING", retry_after_s=_RESTART_S)
        if spec.step_id in self._running:
            raise AlreadyExists(f"Step {spec.step_id} runs here.", "STEP_RUNNING", "step_id")
        if len(self._running) >= self._max_waiting:
            raise ResourceExhausted(
                f"{len(self._running)} steps wait here already.",
                "QUEUE_FULL",
                retry_after_s=max(0.1, 10 * self.totals.recent_step_s),
            )
        stream = StepStream(self.clock.now())
        self._running[spec.step_id] = _Running(spec, booking, stream, self.weights.seq)
        self._send(Add(spec))
        return stream

    def end(self, step_id: str, choice: int | None, reason: FinishReason) -> bool:
        """End a step or one of its choices; False if it does not run here."""
        if step_id not in self._running:
            return False
        self._send(End(step_id, choice, reason))
        return True

    def abandon(self, step_id: str) -> None:
        """The caller is gone: free what the step holds."""
        running = self._running.get(step_id)
        if running is not None and not running.stream.is_over:
            self._send(End(step_id, None, FinishReason.ABORT))

    def count_steps(self) -> tuple[int, int]:
        """Steps that entered the batch and have not ended, and steps that have yet to enter it."""
        entered = sum(running.stream.admitted is not None for running in self._running.values())
        return entered, len(self._running) - entered

    @property
    def uptime_s(self) -> float:
        return self.clock.now() - self.started

    @property
    def busy_s(self) -> float:
        """Time inside engine steps since the start."""
        return self.totals.busy_s

    # ---- from the engine thread, on the loop

    def hand_off(self, news: HandOff) -> None:
        """Spread one engine turn's news. After the engine's end nobody waits for any: a step that
        was given up may come to an end after all."""
        if self.died.is_set():
            return
        now = self.clock.now()
        outcome = news.outcome
        self.stats = news.stats
        self._count(news)
        for refused in news.refused:
            self._refuse(refused)
        for admitted in outcome.admitted:
            self._running[admitted.step_id].stream.admit(admitted)
        for update in outcome.updates:
            self._running[update.step_id].stream.push(update, now)
        for ended in outcome.ended:
            running = self._running.pop(ended.step_id)
            running.stream.end(ended, now, _fault() if ended.faulty else None)
            self._report(running)
        if self._tier is not None and outcome.stores:
            self._tier.offer(outcome.stores)
        for lookup in outcome.lookups:
            task = asyncio.create_task(self._fetch(lookup))
            self._fetches.add(task)
            task.add_done_callback(self._fetches.discard)

    def engine_died(self, error: BaseException) -> None:
        """The engine broke: every step ends with a status that says to try elsewhere, and nothing
        new is taken. Hand-offs came before this, so no step that has ended is here any more."""
        log.critical("the engine stopped", exc_info=error)
        self.died.set()
        running, self._running = self._running, {}
        for each in running.values():
            each.stream.fail(_engine_gone())

    async def watch(
        self, watch: StepWatch, step: Callable[[], int | None], where: Callable[[], str]
    ) -> None:
        """Until the engine ends, or is given up because it is stuck in a step. step: the number of
        the one that runs, None between steps. where: what the engine's thread is at."""
        while not self.died.is_set():
            if watch.look(step(), self.clock.now()):
                log.critical("the engine is stuck here:\n%s", where())
                self.engine_died(EngineStuck(f"a step went on for {watch.limit_s:g} s"))
                return
            await self.clock.sleep(watch.every_s)

    # ---- inside

    def _refuse(self, refused: Refused) -> None:
        running = self._running.pop(refused.step_id)
        running.stream.fail(_refusal(refused))

    def _count(self, news: HandOff) -> None:
        outcome, totals = news.outcome, self.totals
        if outcome.fed_tokens:
            totals.engine_steps += 1
            weight = 1.0 if totals.recent_step_s == 0.0 else 0.1
            totals.recent_step_s += weight * (outcome.busy_s - totals.recent_step_s)
        totals.busy_s += outcome.busy_s
        totals.completion_tokens += outcome.sampled_tokens

    def _report(self, running: _Running) -> None:
        report = finished_step(running, int(self.clock.time() * 1000))
        self.totals.prompt_tokens += report.prompt_tokens
        self.totals.cached_tokens += report.cached_tokens
        self._tokens.labels("prompt").inc(report.prompt_tokens)
        self._tokens.labels("cached").inc(report.cached_tokens)
        self._tokens.labels("completion").inc(report.completion_tokens)
        self._steps.labels(report.finish_reason).inc()
        if report.first_token_s > 0:
            self._ttft.observe(report.first_token_s)
        self.reports.append(report)
        self.reported.set()

    async def _fetch(self, lookup: Lookup) -> None:
        """Answer a lookup whatever happens: a sequence waits for it."""
        assert self._tier is not None
        found = []
        try:
            async with asyncio.timeout(_FETCH_TIMEOUT_S):
                found = await self._tier.fetch(lookup)
        except (ImpalaError, TimeoutError) as error:
            log.warning("a KV lookup failed, recomputing: %s", error or type(error).__name__)
        finally:
            self._send(Fetched(lookup.seq_id, found))


def finished_step(running: _Running, unix_ms: int) -> FinishedStep:
    """The report of a step that has ended."""
    spec, booking, stream = running.spec, running.booking, running.stream
    ended = stream.ended
    assert ended is not None
    arrived = stream.arrived
    admitted_at = stream.admitted.at if stream.admitted is not None else stream.ended_at
    first = stream.first_token_at
    return FinishedStep(
        step_id=spec.step_id,
        grant_id=booking.grant_id,
        self_placed=booking.self_placed,
        account=booking.account,
        job_id=booking.job_id,
        run_id=booking.run_id,
        line=booking.line,
        trace_id=booking.trace_id,
        prompt_tokens=ended.prompt_tokens,
        cached_tokens=ended.cached_tokens,
        completion_tokens=stream.completion_tokens,
        finish_reason=(
            FinishReason.ERROR if ended.faulty else stream.finish_reasons.get(0, FinishReason.ABORT)
        ),
        prompt_hashes=pack(ended.prompt_hashes),
        output_hashes=pack(ended.output_hashes),
        engine_s=ended.engine_s,
        queue_s=max(0.0, admitted_at - arrived),
        first_token_s=first - arrived if first is not None else 0.0,
        total_s=stream.ended_at - arrived,
        finished_unix_ms=unix_ms,
        weight_seq=running.weight_seq,
    )


def _engine_gone() -> ImpalaError:
    return Unavailable(
        "The engine stopped with an error; the server restarts.",
        "ENGINE_DIED",
        retry_after_s=_RESTART_S,
    )


def _fault() -> ImpalaError:
    return Internal("The model failed on this request; others are not affected.", "STEP_FAULT")


def _refusal(refused: Refused) -> ImpalaError:
    error = refused.error
    if isinstance(error, NeverFits):
        return error
    if isinstance(error, DuplicateSequence):
        return AlreadyExists(f"Step {refused.step_id} runs here.", "STEP_RUNNING", "step_id")
    log.error("a step was refused", exc_info=error, extra={"step": refused.step_id})
    return Internal("The engine did not take the step.", "BATCHER_REFUSED")
