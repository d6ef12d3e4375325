"""The ModelServer contract over gRPC: check, delegate, map the error, fill."""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, replace

import grpc

from impala.common.v1 import common_pb2
from impala.modelserver.v1 import modelserver_pb2, modelserver_pb2_grpc
from libs.errors import InvalidArgument, Unavailable, Unimplemented
from libs.rpc import ACCEPTED
from services.modelserver.app import Booking, ModelServerApp
from services.modelserver.core import checks
from services.modelserver.herd.core.plan import FinishReason
from services.modelserver.herd.core.sequence import Limits as TokenLimits
from services.modelserver.herd.engine.sampling_params import BadSampling, SamplingParams
from services.modelserver.herd.engine.step import ChoiceUpdate, StepSpec
from services.modelserver.step_stream import StepStream

_Context = grpc.aio.ServicerContext[object, object]
_COALESCE_S = 0.05
_WATCH_S = 1.0
_SHARED_SALT = bytes(16)
_LOADING = modelserver_pb2.State(phase="loading")

_FINISH = {
    FinishReason.STOP: common_pb2.FINISH_REASON_STOP,
    FinishReason.LENGTH: common_pb2.FINISH_REASON_LENGTH,
    FinishReason.ABORT: common_pb2.FINISH_REASON_ABORTED,
    FinishReason.ERROR: common_pb2.FINISH_REASON_ERROR,
}


@dataclass(frozen=True, slots=True)
class Identity:
    """What this server is; fixed for its life."""

    member_id: str
    incarnation: str
    fleet: str
    precision: str
    numerics: str
    layout: str
    eos_ids: frozenset[int]
    max_seqs: int
    block_tokens: int


@dataclass(frozen=True, slots=True)
class Served:
    """Everything the contract needs once the weights are loaded. `phase` tells "serving" or
    "draining", `check_epoch` raises for a leader that leads the fleet no more or never did,
    `kv_moved` tells the lower tier's counters (loaded, stored, refused)."""

    app: ModelServerApp
    identity: Identity
    limits: checks.Limits
    draw_seed: Callable[[], int]
    check_epoch: Callable[[int], Awaitable[None]]
    phase: Callable[[], str]
    kv_moved: Callable[[], tuple[int, int, int]]


class ModelServerApi(modelserver_pb2_grpc.ModelServerServicer):
    """Answers from the start of the process; until `open`, that the weights are loading."""

    def __init__(self) -> None:
        self._opened: Served | None = None

    def open(self, served: Served) -> None:
        """From now on steps are taken."""
        self._opened = served

    @property
    def _served(self) -> Served:
        if self._opened is None:
            raise Unavailable("The weights are being loaded.", "LOADING", retry_after_s=1.0)
        return self._opened

    @property
    def _app(self) -> ModelServerApp:
        return self._served.app

    async def Generate(
        self, request: modelserver_pb2.GenerateRequest, context: _Context
    ) -> AsyncIterator[modelserver_pb2.GenerateResponse]:
        spec = self._spec(request)
        await self._check_placement(request)
        checks.check_weights(request.min_seq, self._app.weights.seq)
        stream = self._app.submit(spec, _booking(request))
        try:
            await context.send_initial_metadata(ACCEPTED)
            async for response in self._responses(stream, request):
                yield response
        finally:
            self._app.abandon(spec.step_id)

    async def Embed(
        self, request: modelserver_pb2.EmbedRequest, context: _Context
    ) -> modelserver_pb2.EmbedResponse:
        raise Unimplemented(
            "Embeddings are not served yet; this engine generates only.", "EMBED_UNIMPLEMENTED"
        )

    async def Abort(
        self, request: modelserver_pb2.AbortRequest, context: _Context
    ) -> modelserver_pb2.AbortResponse:
        stopped = request.reason == common_pb2.FINISH_REASON_STOP
        reason = FinishReason.STOP if stopped else FinishReason.ABORT
        choice = request.choice if request.HasField("choice") else None
        return modelserver_pb2.AbortResponse(found=self._app.end(request.step_id, choice, reason))

    async def GetState(
        self, request: modelserver_pb2.GetStateRequest, context: _Context
    ) -> modelserver_pb2.State:
        return _LOADING if self._opened is None else self._state(self._opened)

    async def WatchState(
        self, request: modelserver_pb2.WatchStateRequest, context: _Context
    ) -> AsyncIterator[modelserver_pb2.State]:
        checks.check_interval(request.interval_s)
        interval = request.interval_s or _WATCH_S
        served = self._served
        while True:
            yield self._state(served)
            if served.phase() == "draining" and not any(served.app.count_steps()):
                return  # nobody who watches shall hold up the end
            await served.app.clock.sleep(interval)

    # ---- inside

    def _spec(self, request: modelserver_pb2.GenerateRequest) -> StepSpec:
        limits, n = self._served.limits, request.n or 1
        salt = request.account_salt
        checks.check_identity(request.step_id, request.model, salt, n, limits)
        if request.adapter:
            raise Unimplemented("Adapters are not served yet.", "ADAPTER_UNIMPLEMENTED", "adapter")
        checks.check_prompt(request.prompt, limits)
        checks.check_coalesce(request.coalesce_s)
        sampling = _sampling(request, limits.vocab_size)
        first = sampling.seed if sampling.seed is not None else self._served.draw_seed()
        room = checks.output_room(len(request.prompt), request.stopping.max_tokens, limits)
        return StepSpec(
            step_id=request.step_id,
            prompt=list(request.prompt),
            salt=salt or _SHARED_SALT,
            limits=self._token_limits(request.stopping, room),
            sampling=tuple(replace(sampling, seed=first + choice) for choice in range(n)),
            priority=_priority(request),
        )

    def _token_limits(self, stopping: modelserver_pb2.Stopping, room: int) -> TokenLimits:
        if stopping.min_tokens > room:
            raise InvalidArgument(
                f"min_tokens of {stopping.min_tokens} is more than the {room} tokens there is "
                "room for.",
                "MIN_TOKENS_TOO_LARGE",
                "stopping.min_tokens",
            )
        return TokenLimits(
            max_tokens=room,
            min_tokens=stopping.min_tokens,
            eos_token_ids=self._served.identity.eos_ids,
            stop_token_ids=frozenset(stopping.stop_token_ids),
            ignore_eos=stopping.ignore_eos,
        )

    async def _check_placement(self, request: modelserver_pb2.GenerateRequest) -> None:
        kind = request.WhichOneof("placement")
        if kind is None:
            raise InvalidArgument(
                "A step needs a grant, or to say that it is self-placed.",
                "PLACEMENT_MISSING",
                "placement",
            )
        if kind == "self_placed":
            return
        grant = request.grant
        checks.check_grant(
            valid_s=grant.valid_s if grant.HasField("valid_s") else None,
            member_id=grant.member_id,
            own_id=self._served.identity.member_id,
            incarnation=grant.incarnation,
            own_incarnation=self._served.identity.incarnation,
        )
        await self._served.check_epoch(grant.epoch)

    async def _responses(
        self, stream: StepStream, request: modelserver_pb2.GenerateRequest
    ) -> AsyncIterator[modelserver_pb2.GenerateResponse]:
        started = False
        while True:
            await self._wait(stream, request)
            if stream.failure is not None:
                raise stream.failure
            over = stream.is_over
            response = modelserver_pb2.GenerateResponse(deltas=_deltas(stream.take()))
            if not started and (stream.admitted is not None or over):
                started = True
                response.started.CopyFrom(self._started(stream, request))
            if over:
                response.done.CopyFrom(self._done(stream, request))
            if started:
                yield response
            if over:
                return

    async def _wait(self, stream: StepStream, request: modelserver_pb2.GenerateRequest) -> None:
        if request.emission == modelserver_pb2.EMISSION_FINAL:
            await stream.over()
            return
        await stream.changed()
        if request.emission == modelserver_pb2.EMISSION_COALESCED:
            await stream.over(at_most_s=request.coalesce_s or _COALESCE_S)

    def _started(
        self, stream: StepStream, request: modelserver_pb2.GenerateRequest
    ) -> modelserver_pb2.Started:
        admitted = stream.admitted
        return modelserver_pb2.Started(
            prompt_tokens=len(request.prompt),
            cached_tokens=admitted.cached_tokens if admitted else 0,
            weights=self._weights(),
            queue_s=max(0.0, admitted.at - stream.arrived) if admitted else 0.0,
        )

    def _done(
        self, stream: StepStream, request: modelserver_pb2.GenerateRequest
    ) -> modelserver_pb2.Done:
        ended = stream.ended
        assert ended is not None
        first = stream.first_token_at
        return modelserver_pb2.Done(
            usage=common_pb2.Usage(
                prompt_tokens=len(request.prompt),
                cached_tokens=ended.cached_tokens,
                completion_tokens=stream.completion_tokens,
            ),
            spans=self._spans(stream),
            queue_s=max(0.0, stream.admitted.at - stream.arrived) if stream.admitted else 0.0,
            first_token_s=first - stream.arrived if first is not None else 0.0,
            total_s=stream.ended_at - stream.arrived,
            engine_s=ended.engine_s,
            preemptions=ended.preemptions,
        )

    def _spans(self, stream: StepStream) -> list[modelserver_pb2.ChoiceSpans]:
        seq = self._app.weights.seq
        return [
            modelserver_pb2.ChoiceSpans(
                index=choice,
                spans=[common_pb2.VersionSpan(seq=seq, start_token=0, end_token=count)],
            )
            for choice, count in sorted(stream.tokens_by_choice.items())
        ]

    def _weights(self) -> common_pb2.WeightVersion:
        served = self._app.weights
        return common_pb2.WeightVersion(model=served.model, seq=served.seq, digest=served.digest)

    def _state(self, served: Served) -> modelserver_pb2.State:
        app, identity = served.app, served.identity
        stats, totals = app.stats, app.totals
        loaded, stored, refused = served.kv_moved()
        running_steps, waiting_steps = app.count_steps()
        return modelserver_pb2.State(
            member_id=identity.member_id,
            incarnation=identity.incarnation,
            model=served.limits.model,
            fleet=identity.fleet,
            weights=self._weights(),
            phase=served.phase(),
            block_tokens=identity.block_tokens,
            max_context=served.limits.max_context,
            total_blocks=stats.free_blocks + stats.used_blocks + stats.cached_blocks,
            free_blocks=stats.free_blocks,
            cached_blocks=stats.cached_blocks,
            running_steps=running_steps,
            waiting_steps=waiting_steps,
            max_steps=identity.max_seqs,
            step_s=totals.recent_step_s,
            prompt_tokens_total=totals.prompt_tokens,
            cached_tokens_total=totals.cached_tokens,
            completion_tokens_total=totals.completion_tokens,
            preemptions_total=stats.preemptions,
            engine_steps_total=totals.engine_steps,
            busy_s_total=totals.busy_s,
            uptime_s=app.uptime_s,
            precision=identity.precision,
            numerics=identity.numerics,
            layout=identity.layout,
            kv_loaded_blocks_total=loaded,
            kv_stored_blocks_total=stored,
            kv_refused_blocks_total=refused,
            running_sequences=stats.running,
            waiting_sequences=stats.waiting,
        )


def _sampling(request: modelserver_pb2.GenerateRequest, vocab_size: int) -> SamplingParams:
    wire, stopping = request.sampling, request.stopping
    try:
        params = SamplingParams(
            temperature=wire.temperature,
            top_k=wire.top_k,
            top_p=wire.top_p or 1.0,
            min_p=wire.min_p,
            seed=wire.seed if wire.HasField("seed") else None,
            presence_penalty=wire.presence_penalty,
            frequency_penalty=wire.frequency_penalty,
            repetition_penalty=wire.repetition_penalty or 1.0,
            logit_bias=tuple(sorted(wire.logit_bias.items())),
            logprobs=request.logprobs if request.HasField("logprobs") else None,
            min_tokens=stopping.min_tokens,
            stop_token_ids=tuple(stopping.stop_token_ids),
        )
        params.check_vocabulary(vocab_size)
    except BadSampling as error:
        raise InvalidArgument(f"{error}.", "SAMPLING_INVALID", f"sampling.{error.field}") from None
    return params


def _priority(request: modelserver_pb2.GenerateRequest) -> int:
    """Windows first (their numbers rise with patience), then the caller's own order."""
    window = request.window or common_pb2.WINDOW_STANDARD
    within = max(-(1 << 20), min(1 << 20, request.priority))
    return (int(window) << 22) + within


def _booking(request: modelserver_pb2.GenerateRequest) -> Booking:
    owner = request.owner
    return Booking(
        grant_id=request.grant.grant_id,
        self_placed=request.HasField("self_placed"),
        account=owner.account,
        job_id=owner.job_id,
        run_id=owner.run_id,
        line=owner.line,
        trace_id=request.trace_id or request.grant.trace_id,
    )


def _deltas(updates: Sequence[ChoiceUpdate]) -> list[modelserver_pb2.ChoiceDelta]:
    """One delta a choice, in order of choice: what several engine steps gave is joined."""
    deltas: dict[int, modelserver_pb2.ChoiceDelta] = {}
    for update in updates:
        delta = deltas.setdefault(update.choice, modelserver_pb2.ChoiceDelta(index=update.choice))
        delta.tokens.extend(update.tokens)
        for token, logprobs in zip(update.tokens, update.logprobs, strict=False):
            delta.logprobs.append(
                modelserver_pb2.Logprobs(
                    chosen=modelserver_pb2.TokenLogprob(token=token, logprob=logprobs.chosen),
                    top=[
                        modelserver_pb2.TokenLogprob(token=other, logprob=value)
                        for other, value in logprobs.top
                    ],
                )
            )
        if update.finish is not None:
            delta.finish_reason = _FINISH[update.finish]
            delta.stopped_by_token = update.stopped_by_token
    return [deltas[choice] for choice in sorted(deltas)]
