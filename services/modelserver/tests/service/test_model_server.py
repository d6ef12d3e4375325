"""A model server as its callers meet it: gRPC in, tokens out, nothing left behind."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
import pytest_asyncio
from transformers import LlamaForCausalLM

from impala.common.v1 import common_pb2
from impala.modelserver.v1 import modelserver_pb2 as pb
from impala.modelserver.v1 import modelserver_pb2_grpc
from libs.cluster.election import Election
from libs.cluster.members import Members
from libs.errors import (
    Aborted,
    AlreadyExists,
    FailedPrecondition,
    ImpalaError,
    InvalidArgument,
    ResourceExhausted,
    StartupError,
    Unavailable,
    Unimplemented,
)
from libs.hashing import account_salt, content_hashes, pack, weights_root
from libs.records import keys
from libs.rpc import Shutdown, from_rpc_error
from libs.testing.etcd import EtcdProcess
from libs.testing.rpc import free_port
from libs.testing.waiting import eventually
from services.modelserver.config import ModelServerConfig
from services.modelserver.serve import serve
from services.modelserver.tests.models.factories import (
    assert_greedy_equal,
    prompt_of,
    reference_greedy,
    save_tiny,
)
from services.modelserver.tests.service.rig import (
    WAIT_S,
    Rig,
    model_server,
    request,
    rest_of,
    tokens_of,
)
from services.modelserver.torch_model import load


@pytest.fixture(scope="module")
def etcd() -> Iterator[EtcdProcess]:
    with EtcdProcess() as process:
        yield process


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tiny")


@pytest.fixture(scope="module")
def reference(folder: Path) -> LlamaForCausalLM:
    return save_tiny(folder)


@pytest_asyncio.fixture
async def rig(folder: Path, reference: LlamaForCausalLM, etcd: EtcdProcess) -> AsyncIterator[Rig]:
    async with model_server(folder, etcd.endpoint) as up:
        yield up


async def refusal(rig: Rig, step: pb.GenerateRequest) -> ImpalaError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await rig.run(step)
    return from_rpc_error(caught.value)


def granted(**fields: Any) -> pb.Grant:
    base: dict[str, Any] = {
        "grant_id": "g",
        "epoch": 5,
        "valid_s": 60.0,
        "member_id": "ms-0",
    }
    return pb.Grant(**(base | fields))


async def test_sixteen_steps_at_once_say_what_the_reference_says(
    rig: Rig, reference: LlamaForCausalLM
) -> None:
    prompts = [prompt_of(20 + 9 * n) for n in range(16)]
    answers = await asyncio.gather(*(rig.run(request(prompt)) for prompt in prompts))
    for prompt, responses in zip(prompts, answers, strict=True):
        theirs, gaps = reference_greedy(reference, prompt, 8)
        assert_greedy_equal(tokens_of(responses), theirs, gaps)


async def test_a_stream_starts_once_ends_once_and_its_usage_is_right(rig: Rig) -> None:
    first = await rig.run(request(prompt_of(70)))
    again = await rig.run(request(prompt_of(70)))
    assert [r.HasField("started") for r in again] == [True] + [False] * (len(again) - 1)
    assert [r.HasField("done") for r in again] == [False] * (len(again) - 1) + [True]
    done = again[-1].done
    assert (done.usage.prompt_tokens, done.usage.completion_tokens) == (70, 8)
    assert first[-1].done.usage.cached_tokens == 0
    assert done.usage.cached_tokens == again[0].started.cached_tokens == 64
    assert again[-1].deltas[0].finish_reason == common_pb2.FINISH_REASON_LENGTH
    assert done.spans[0].spans[0] == common_pb2.VersionSpan(seq=3, start_token=0, end_token=8)
    assert tokens_of(first) == tokens_of(again)


@pytest.mark.parametrize("emission", [pb.EMISSION_EACH, pb.EMISSION_COALESCED, pb.EMISSION_FINAL])
async def test_every_emission_carries_the_same_tokens(rig: Rig, emission: Any) -> None:
    plain = await rig.run(request(prompt_of(40)))
    other = await rig.run(request(prompt_of(40), emission=emission))
    assert tokens_of(other) == tokens_of(plain)
    assert emission != pb.EMISSION_FINAL or len(other) == 1


async def test_logprobs_come_with_each_token_best_first(rig: Rig) -> None:
    responses = await rig.run(request(prompt_of(40), logprobs=3))
    rows = [row for r in responses for d in r.deltas for row in d.logprobs]
    assert [row.chosen.token for row in rows] == tokens_of(responses)
    for row in rows:
        values = [each.logprob for each in row.top]
        assert len(values) == 3 and values == sorted(values, reverse=True)
        assert row.top[0].token == row.chosen.token


async def test_a_seed_repeats_and_two_choices_differ(rig: Rig) -> None:
    def step() -> pb.GenerateRequest:
        sampling = pb.Sampling(temperature=1.5, seed=11)
        return request(prompt_of(30), n=2, sampling=sampling)

    one, two = await rig.run(step()), await rig.run(step())
    assert tokens_of(one, 0) == tokens_of(two, 0)
    assert tokens_of(one, 1) == tokens_of(two, 1)
    assert tokens_of(one, 0) != tokens_of(one, 1)


async def test_a_cancelled_call_frees_its_blocks_and_is_reported_as_aborted(rig: Rig) -> None:
    call = rig.stub.Generate(request(prompt_of(200), 300))
    await call.read()
    call.cancel()
    await rig.until_no_block_is_used()
    (report,) = await rig.scheduler.wait_for(1)
    assert report.finish_reason == common_pb2.FINISH_REASON_ABORTED


async def test_a_call_that_is_cancelled_in_the_queue_is_reported_without_tokens(
    folder: Path, reference: LlamaForCausalLM, etcd: EtcdProcess
) -> None:
    async with model_server(folder, etcd.endpoint, max_seqs=1) as rig:
        ahead = rig.stub.Generate(request(prompt_of(40), 300))
        await ahead.read()
        queued = rig.stub.Generate(request(prompt_of(50), owner=pb.Owner(run_id="queued")))
        async with asyncio.timeout(10):
            while (await rig.state()).waiting_steps == 0:
                pass
        queued.cancel()
        (report,) = await rig.scheduler.wait_for(1)
        ahead.cancel()
    assert report.owner.run_id == "queued"
    assert report.usage == common_pb2.Usage()


async def test_two_hundred_clients_that_come_and_go_leave_no_block_behind(rig: Rig) -> None:
    calls = [rig.stub.Generate(request(prompt_of(60 + n % 5), 200)) for n in range(200)]
    await asyncio.gather(*(call.read() for call in calls[::10]))
    for call in calls:
        call.cancel()
    state = await rig.until_no_block_is_used()
    assert (state.running_steps, state.waiting_steps) == (0, 0)
    assert len(tokens_of(await rig.run(request(prompt_of(40))))) == 8


async def test_an_expired_deadline_ends_the_step_in_the_engine(rig: Rig) -> None:
    step = request(prompt_of(200), 300, n=16, sampling=pb.Sampling(temperature=1.0, seed=1))
    call = rig.stub.Generate(step, timeout=0.1)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await rest_of(call)
    assert caught.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
    await rig.until_no_block_is_used()


async def test_a_stop_found_by_the_caller_ends_one_choice_as_a_stop(rig: Rig) -> None:
    step = request(prompt_of(40), 200, n=2, sampling=pb.Sampling(temperature=1.0, seed=1))
    call = rig.stub.Generate(step)
    await call.read()
    state = await rig.state()
    sequences = state.running_sequences + state.waiting_sequences
    assert (state.running_steps, sequences) == (1, 2)
    abort = pb.AbortRequest(step_id=step.step_id, choice=1, reason=common_pb2.FINISH_REASON_STOP)
    assert (await rig.stub.Abort(abort)).found
    deltas = [delta for response in await rest_of(call) for delta in response.deltas]
    reasons = {d.index: d.finish_reason for d in deltas if d.finish_reason}
    assert reasons == {1: common_pb2.FINISH_REASON_STOP, 0: common_pb2.FINISH_REASON_LENGTH}


@pytest.mark.parametrize(
    ("changes", "kind", "reason", "field"),
    [
        ({"prompt": []}, InvalidArgument, "PROMPT_EMPTY", "prompt"),
        ({"prompt": [5, 211]}, InvalidArgument, "TOKEN_UNKNOWN", "prompt"),
        ({"prompt": [5] * 512}, InvalidArgument, "CONTEXT_LENGTH_EXCEEDED", "prompt"),
        (
            {"prompt": [5] * 500, "stopping": pb.Stopping(max_tokens=13)},
            InvalidArgument,
            "CONTEXT_LENGTH_EXCEEDED",
            "stopping.max_tokens",
        ),
        ({"model": "other"}, FailedPrecondition, "WRONG_MODEL", "model"),
        ({"account_salt": b"short"}, InvalidArgument, "SALT_INVALID", "account_salt"),
        ({"n": 129}, InvalidArgument, "N_INVALID", "n"),
        ({"step_id": ""}, InvalidArgument, "STEP_ID_INVALID", "step_id"),
        (
            {"sampling": pb.Sampling(top_p=1.5)},
            InvalidArgument,
            "SAMPLING_INVALID",
            "sampling.top_p",
        ),
        (
            {"sampling": pb.Sampling(temperature=math.nan)},
            InvalidArgument,
            "NOT_FINITE",
            "sampling.temperature",
        ),
        ({"coalesce_s": 1e9}, InvalidArgument, "COALESCE_OUT_OF_RANGE", "coalesce_s"),
        ({"coalesce_s": -1.0}, InvalidArgument, "COALESCE_OUT_OF_RANGE", "coalesce_s"),
        ({"coalesce_s": math.nan}, InvalidArgument, "NOT_FINITE", "coalesce_s"),
        ({"logprobs": 21}, InvalidArgument, "SAMPLING_INVALID", "sampling.logprobs"),
        ({"adapter": "lora"}, Unimplemented, "ADAPTER_UNIMPLEMENTED", "adapter"),
        ({"min_seq": 4}, FailedPrecondition, "WEIGHTS_TOO_OLD", "min_seq"),
        ({"self_placed": None}, InvalidArgument, "PLACEMENT_MISSING", "placement"),
        (
            {"stopping": pb.Stopping(max_tokens=2, min_tokens=3)},
            InvalidArgument,
            "MIN_TOKENS_TOO_LARGE",
            "stopping.min_tokens",
        ),
    ],
)
async def test_a_wrong_field_is_refused_by_name(
    rig: Rig, changes: dict[str, Any], kind: type[ImpalaError], reason: str, field: str
) -> None:
    error = await refusal(rig, request(**({"prompt": prompt_of(10)} | changes)))
    assert (type(error), error.reason, error.field) == (kind, reason, field)


@pytest.mark.parametrize("seconds", [0.01, -1.0, 1e9, math.nan, math.inf])
async def test_a_watch_of_no_interval_is_refused(rig: Rig, seconds: float) -> None:
    states = rig.stub.WatchState(pb.WatchStateRequest(interval_s=seconds))
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await anext(aiter(states))
    error = from_rpc_error(caught.value)
    assert (type(error), error.field) == (InvalidArgument, "interval_s")


async def test_the_longest_step_that_the_context_allows_runs(rig: Rig) -> None:
    assert len(tokens_of(await rig.run(request([5] * 500, 12)))) == 12


async def test_a_step_beyond_the_pool_is_refused_by_the_engine(
    folder: Path, reference: LlamaForCausalLM, etcd: EtcdProcess
) -> None:
    async with model_server(folder, etcd.endpoint, kv_bytes=4 * 32 * 2 * 3 * 16 * 4) as rig:
        error = await refusal(rig, request(prompt_of(100), 100))
        assert (type(error).__name__, error.field) == ("InvalidArgument", "max_tokens")
        await rig.until_no_block_is_used()


async def test_a_grant_of_a_succeeded_leader_is_refused(rig: Rig) -> None:
    before = rig.epoch
    await rig.run(request(prompt_of(10), self_placed=None, grant=granted(epoch=before)))
    await rig.follow_leader()
    assert rig.epoch > before
    await rig.run(request(prompt_of(10), self_placed=None, grant=granted(epoch=rig.epoch)))
    late = request(prompt_of(10), self_placed=None, grant=granted(epoch=before))
    error = await refusal(rig, late)
    assert (type(error), error.reason) == (Aborted, "EPOCH_STALE")


async def test_an_epoch_that_nobody_was_elected_with_shuts_out_no_leader(rig: Rig) -> None:
    made_up = request(prompt_of(10), self_placed=None, grant=granted(epoch=1 << 60))
    error = await refusal(rig, made_up)
    assert (type(error), error.reason) == (Aborted, "EPOCH_UNKNOWN")
    await rig.run(request(prompt_of(10), self_placed=None, grant=granted(epoch=rig.epoch)))


async def test_an_expired_grant_and_one_for_another_life_are_refused(rig: Rig) -> None:
    late = request(prompt_of(10), self_placed=None, grant=granted(valid_s=-0.001))
    assert (await refusal(rig, late)).reason == "GRANT_EXPIRED"
    other = request(prompt_of(10), self_placed=None, grant=granted(incarnation="before"))
    assert (await refusal(rig, other)).reason == "GRANT_ELSEWHERE"


async def test_a_step_that_runs_is_not_started_twice(rig: Rig) -> None:
    step = request(prompt_of(40), 200)
    call = rig.stub.Generate(step)
    await call.read()
    error = await refusal(rig, step)
    assert (type(error), error.reason) == (AlreadyExists, "STEP_RUNNING")
    call.cancel()


async def test_a_full_queue_says_when_to_come_back(
    folder: Path, reference: LlamaForCausalLM, etcd: EtcdProcess
) -> None:
    async with model_server(folder, etcd.endpoint, max_waiting=1) as rig:
        call = rig.stub.Generate(request(prompt_of(40), 300))
        await call.read()
        error = await refusal(rig, request(prompt_of(10)))
        assert isinstance(error, ResourceExhausted) and error.retry_after_s
        call.cancel()


async def test_finished_steps_are_reported_with_their_hashes_and_owner(rig: Rig) -> None:
    salt = account_salt("acme")
    prompt = prompt_of(70)
    owner = pb.Owner(account="acme", job_id="job-1", run_id="run-1", line=4)
    responses = await rig.run(
        request(
            prompt,
            30,
            account_salt=salt,
            owner=owner,
            trace_id="t",
            self_placed=None,
            grant=granted(grant_id="g1", epoch=rig.epoch),
        )
    )
    (report,) = await rig.scheduler.wait_for(1)
    whole = pack(content_hashes(salt, prompt + tokens_of(responses)))
    assert (report.owner, report.trace_id, report.grant_id) == (owner, "t", "g1")
    assert report.prompt_hashes + report.output_hashes == whole
    assert len(report.prompt_hashes) == 2 * 16
    assert report.usage == responses[-1].done.usage
    assert report.engine_s == pytest.approx(responses[-1].done.engine_s)
    assert report.weight_seq == 3


async def test_reports_whose_answer_was_lost_are_sent_again_under_the_same_number(
    rig: Rig,
) -> None:
    rig.scheduler.lose_answers = 2
    await rig.run(request(prompt_of(10)))
    await rig.run(request(prompt_of(11)))
    reports = await rig.scheduler.wait_for(2)
    async with asyncio.timeout(10):
        while rig.scheduler.received < 3:
            rig.scheduler.heard.clear()
            await rig.scheduler.heard.wait()
    assert [report.sequence for report in reports] == [1, 2]


async def test_a_report_is_sent_to_a_leader_once_and_to_the_next_one_again(rig: Rig) -> None:
    """The first has booked both and written neither: only what is written is forgotten."""
    rig.scheduler.acknowledges = False
    for at in range(2):
        await rig.run(request(list(range(at, at + 5))))
        await rig.scheduler.wait_for(at + 1)
    asked = rig.scheduler.asked
    await eventually(lambda: rig.scheduler.asked > asked + 2)  # for what was acknowledged
    first_life = rig.scheduler.received
    rig.scheduler.booked.clear()
    rig.scheduler.epoch += 1
    reports = await rig.scheduler.wait_for(2)
    assert [report.sequence for report in reports] == [1, 2]
    assert first_life <= 2 * 2, "asked again and again with the same reports"
    rig.scheduler.acknowledges = True
    await eventually(lambda: rig.scheduler.unacknowledged == 0)


async def test_reports_wait_for_a_leader(
    folder: Path, reference: LlamaForCausalLM, etcd: EtcdProcess
) -> None:
    async with model_server(folder, etcd.endpoint, with_leader=False) as rig:
        await rig.run(request(prompt_of(10)))
        assert not rig.scheduler.booked
        election = Election(rig.etcd, keys.fleet_election("tiny.float32"), "scheduler-0")
        rig.leadership = await election.campaign()
        (report,) = await rig.scheduler.wait_for(1)
        assert report.usage.prompt_tokens == 10


async def test_the_manifest_says_how_each_tensor_is_stored(
    rig: Rig, reference: LlamaForCausalLM
) -> None:
    (manifest,) = rig.leap.manifests
    shapes = {tensor.name: tuple(tensor.shape) for tensor in manifest.tensors}
    parameters = dict(reference.named_parameters())
    assert shapes == {name: tuple(each.shape) for name, each in parameters.items()}
    assert {tensor.dtype for tensor in manifest.tensors} == {"F32"}
    assert manifest.bytes == sum(4 * each.numel() for each in parameters.values())
    assert manifest.layout_signature.startswith("layout1:")


async def test_the_manifest_names_every_tensor_and_the_member_tells_its_version(rig: Rig) -> None:
    (manifest,) = rig.leap.manifests
    names = [tensor.name for tensor in manifest.tensors]
    assert "model.embed_tokens.weight" in names and names == sorted(names)
    assert manifest.digest == weights_root(
        manifest.config_digest, {tensor.name: tensor.digest for tensor in manifest.tensors}
    )
    async with Members(rig.etcd, "modelserver") as members:

        def tells_its_version() -> bool:
            member = members.current().get("ms-0")
            return member is not None and member.info["weight_seq"] == 3

        await members.wait_until(tells_its_version)
        info = members.current()["ms-0"].info
    assert (info["model"], info["fleet"], info["phase"]) == ("tiny", "tiny.float32", "serving")
    assert info["weight_digest"] == manifest.digest.hex()


async def test_a_drain_finishes_what_runs_and_refuses_what_comes(rig: Rig) -> None:
    call = rig.stub.Generate(request(prompt_of(40), 60))
    await call.read()
    rig.shutdown.request("drain")
    error: ImpalaError | None = None
    async with asyncio.timeout(5):
        while not isinstance(error, Unavailable):
            try:
                await rig.run(request(prompt_of(10), 1))
            except grpc.aio.AioRpcError as failure:
                error = from_rpc_error(failure)
    rest = await rest_of(call)
    assert rest[-1].done.usage.completion_tokens == 60
    await rig.task
    assert rig.scheduler.booked


async def test_who_watches_does_not_hold_up_the_end(rig: Rig) -> None:
    """A scheduler always does; its stream ends with the last step, and is not cut."""
    watch = rig.stub.WatchState(pb.WatchStateRequest(interval_s=0.05), timeout=WAIT_S)
    await watch.read()
    rig.shutdown.request("drain")
    phases = []
    while (state := await watch.read()) is not grpc.aio.EOF:
        phases.append(state.phase)
    assert phases[-1] == "draining"
    assert await watch.code() is grpc.StatusCode.OK
    await rig.task


async def test_what_is_not_served_yet_says_why(rig: Rig) -> None:
    control = modelserver_pb2_grpc.KvControlStub(rig.channel)
    weights = modelserver_pb2_grpc.WeightControlStub(rig.channel)
    for answer in (
        rig.stub.Embed(pb.EmbedRequest(model="tiny")),
        control.Prefetch(pb.PrefetchRequest()),
        weights.CommitWeights(pb.CommitWeightsRequest()),
    ):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await answer
        assert caught.value.code() == grpc.StatusCode.UNIMPLEMENTED
        assert len(caught.value.details() or "") > 20


@pytest.mark.parametrize(("kv_bytes", "why"), [(1000, "less than one block"), (1 << 50, "memory")])
async def test_a_pool_that_cannot_be_is_one_sentence_and_frees_the_port(
    folder: Path, reference: LlamaForCausalLM, etcd: EtcdProcess, kv_bytes: int, why: str
) -> None:
    config = ModelServerConfig(
        port=free_port(),
        etcd=(etcd.endpoint,),
        model=str(folder),
        precision="float32",
        threads=1,
        kv_bytes=kv_bytes,
    )
    for _ in range(2):
        with pytest.raises(StartupError, match=f"(?s){why}"):
            await serve(config, Shutdown(), load)
