"""BatchWorker as the scheduler's leader uses it: Index and Execute over a real stream."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Sequence
from typing import Any

import grpc
import pytest
import pytest_asyncio

from impala.common.v1 import common_pb2
from impala.router.v1 import router_pb2, router_pb2_grpc
from libs.cluster.election import Leadership
from libs.cluster.secret import METADATA_KEY, cluster_secret
from libs.errors import Internal, InvalidArgument, Unavailable
from libs.records import keys
from libs.records.index import IndexEntry, unpack_entries
from libs.rpc import connect, from_rpc_error
from services.router.testing import Gate
from services.router.tests.conftest import FLEET, MODEL, Stage

INPUT, INDEX = "files/local/file-1", "runs/run-1/index"


def request_line(custom_id: str, content: str = "Hi", **body: Any) -> bytes:
    record = {
        "custom_id": custom_id,
        "method": "POST",
        "url": "/v1/chat/completions",
        "body": {"model": MODEL, "messages": [{"role": "user", "content": content}], **body},
    }
    return json.dumps(record).encode() + b"\n"


@pytest_asyncio.fixture(loop_scope="session")
async def worker(stage: Stage) -> AsyncIterator[Worker]:
    async with worker_of(stage) as stub:
        yield stub


@pytest_asyncio.fixture(loop_scope="session")
async def fresh_worker(fresh: Stage) -> AsyncIterator[Worker]:
    """Of a router that has seen no leader yet."""
    async with worker_of(fresh) as stub:
        yield stub


class Worker:
    """The stub as the elected leaders use it: with their epochs and the cluster's secret."""

    def __init__(self, stage: Stage, stub: Any, secret: str, intake: Leadership) -> None:
        self.stub = stub
        self._stage = stage
        self._metadata = ((METADATA_KEY, secret),)
        self._intake, self._fleet = intake, stage.leaderships[0]

    @property
    def intake(self) -> int:
        return self._intake.epoch

    @property
    def fleet(self) -> int:
        return self._fleet.epoch

    async def elect_intake(self) -> int:
        """The next epoch of the intake's leader."""
        await self._intake.resign()
        self._intake = await self._stage.elect(keys.ELECTION_INTAKE, "sched-1")
        return self.intake

    async def elect_fleet(self) -> int:
        """The next epoch of the fleet's leader."""
        await self._fleet.resign()
        self._fleet = await self._stage.elect(keys.fleet_election(FLEET), "sched-1")
        return self.fleet

    def Index(self, request: router_pb2.IndexRequest) -> Any:
        return self.stub.Index(request, metadata=self._metadata)

    def Execute(self, requests: AsyncIterator[router_pb2.ExecuteRequest]) -> Any:
        return self.stub.Execute(requests, metadata=self._metadata)


@contextlib.asynccontextmanager
async def worker_of(stage: Stage) -> AsyncIterator[Worker]:
    await stage.add_job()
    await stage.router_sees_jobs(1)
    secret = await cluster_secret(stage.client, "t" * 43)
    intake = await stage.elect(keys.ELECTION_INTAKE, "sched-1")
    async with connect(stage.router.address) as channel:
        yield Worker(stage, router_pb2_grpc.BatchWorkerStub(channel), secret, intake)


async def index(
    stage: Stage, worker: Worker, content: bytes, **changes: Any
) -> router_pb2.IndexDone:
    await stage.objects.put(INPUT, content)
    asked: dict[str, Any] = {
        "run_id": "run-1",
        "epoch": worker.intake,
        "account": "local",
        "input_object": INPUT,
        "endpoint": "/v1/chat/completions",
        "index_object": INDEX,
    }
    messages = [each async for each in worker.Index(router_pb2.IndexRequest(**(asked | changes)))]
    assert [each.HasField("done") for each in messages] == [False] * (len(messages) - 1) + [True]
    return messages[-1].done


async def entries(stage: Stage) -> list[IndexEntry]:
    return list(unpack_entries(await stage.objects.get(INDEX)))


class Leader:
    """One Execute stream."""

    def __init__(self, worker: Worker, **changes: Any) -> None:
        self._requests: asyncio.Queue[router_pb2.ExecuteRequest | None] = asyncio.Queue()
        asked: dict[str, Any] = {
            "run_id": "run-1",
            "batch_id": "batch_1",
            "epoch": worker.fleet,
            "fleet": FLEET,
            "account": "local",
            "job_id": "job-0000aaaa",
            "model": MODEL,
            "endpoint": "/v1/chat/completions",
            "input_object": INPUT,
            "window": common_pb2.WINDOW_BATCH,
        }
        start = router_pb2.ExecuteStart(**(asked | changes))
        self._requests.put_nowait(router_pb2.ExecuteRequest(start=start))
        self.call = worker.Execute(self._sent())

    async def _sent(self) -> AsyncIterator[router_pb2.ExecuteRequest]:
        while (request := await self._requests.get()) is not None:
            yield request

    def hand_out(self, lines: Sequence[IndexEntry]) -> None:
        refs = [
            router_pb2.LineRef(line=each.line, offset=each.offset, length=each.length)
            for each in lines
        ]
        self._requests.put_nowait(router_pb2.ExecuteRequest(lines=refs))

    def cancel(self, lines: Sequence[int]) -> None:
        self._requests.put_nowait(router_pb2.ExecuteRequest(cancel_lines=lines))

    def half_close(self) -> None:
        self._requests.put_nowait(None)

    async def results(self) -> dict[int, router_pb2.LineResult]:
        """All until the stream ends; each line once."""
        found: dict[int, router_pb2.LineResult] = {}
        async for response in self.call:
            for result in response.results:
                assert result.line not in found
                found[result.line] = result
        return found


async def test_an_index_has_an_entry_a_line_and_resolves_the_job(
    stage: Stage, worker: Worker
) -> None:
    lines = [request_line("a"), b"\n", request_line("b", "Other"), request_line("c")]
    content = b"\xef\xbb\xbf" + b"".join(lines)
    done = await index(stage, worker, content)
    assert (done.lines, done.job_id, done.model) == (3, "job-0000aaaa", MODEL)
    assert done.input_bytes == len(content)
    assert not done.errors
    found = await entries(stage)
    assert [each.line for each in found] == [1, 3, 4]
    for entry, line in zip(found, [lines[0], lines[2], lines[3]], strict=True):
        assert content[entry.offset : entry.offset + entry.length] == line.rstrip(b"\n")
    assert found[0].prefix_key == found[2].prefix_key != found[1].prefix_key
    assert len({each.custom_id_hash for each in found}) == 3
    again = await index(stage, worker, content)
    assert again == done
    assert await entries(stage) == found


@pytest.mark.parametrize(
    ("lines", "code", "line"),
    [
        ([request_line("a"), request_line("b"), request_line("a")], "duplicate_custom_id", 3),
        ([request_line("a", model="nope")], "model_not_found", 1),
        ([request_line("a", stream=True)], "invalid_request", 1),
        ([b"\n", b"\n", request_line("a"), b"{\n"], "invalid_json_line", 4),
        ([], "empty_file", 0),
    ],
)
async def test_a_file_that_is_wrong_fails_with_lines_and_leaves_no_index(
    stage: Stage,
    worker: Worker,
    lines: list[bytes],
    code: str,
    line: int,
) -> None:
    done = await index(stage, worker, b"".join(lines))
    assert [(error.code, error.line) for error in done.errors] == [(code, line)]
    assert not await stage.objects.exists(INDEX)


async def test_the_job_must_be_clear(stage: Stage, worker: Worker) -> None:
    done = await index(stage, worker, request_line("a"), job_id="job-ffffffff")
    assert [error.code for error in done.errors] == ["job_not_found"]
    theirs = "files/stranger/file-1"
    await stage.objects.put(theirs, request_line("a"))
    done = await index(stage, worker, request_line("a"), account="stranger", input_object=theirs)
    assert [(error.code, error.param) for error in done.errors] == [("model_not_found", "job_id")]
    await stage.add_job(job_id="job-0000bbbb")
    await stage.router_sees_jobs(2)
    done = await index(stage, worker, request_line("a"))
    assert [error.code for error in done.errors] == ["job_required"]
    for part in ("job-0000aaaa", "job-0000bbbb", "job_id", "'impala jobs list'"):
        assert part in done.errors[0].message
    done = await index(stage, worker, request_line("a"), job_id="job-0000bbbb")
    assert not done.errors


async def test_an_input_that_is_not_there_is_not_found(
    worker: Worker,
) -> None:
    request = router_pb2.IndexRequest(
        run_id="r",
        epoch=worker.intake,
        account="local",
        input_object="files/local/none",
        index_object="runs/r/index",
    )
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await anext(aiter(worker.Index(request)))
    assert caught.value.code() == grpc.StatusCode.NOT_FOUND


async def test_lines_end_as_output_or_as_their_own_error(stage: Stage, worker: Worker) -> None:
    metadata = {"x-impala-trace-id": "t-9"}
    content = (
        request_line("ok", metadata=metadata)
        + request_line("bad", temperature=99)
        + request_line("long", "x" * 5000)
    )
    await index(stage, worker, content)
    leader = Leader(worker)
    leader.hand_out(await entries(stage))
    leader.half_close()
    results = await leader.results()
    assert sorted(results) == [1, 2, 3]

    ok = json.loads(results[1].record)
    assert results[1].outcome == router_pb2.LINE_OUTCOME_OUTPUT
    assert (ok["custom_id"], ok["error"], ok["response"]["status_code"]) == ("ok", None, 200)
    assert ok["response"]["body"]["choices"][0]["message"]["content"] == "Hello there, agent."
    assert ok["id"].startswith("batch_req_")
    assert results[1].usage.completion_tokens == 20
    assert results[1].trace_id == "t-9"
    assert results[1].total_s > 0

    bad = json.loads(results[2].record)
    assert results[2].outcome == router_pb2.LINE_OUTCOME_ERROR
    assert (bad["error"], bad["response"]["status_code"]) == (None, 400)
    assert bad["response"]["body"]["error"]["param"] == "temperature"
    long = json.loads(results[3].record)
    assert long["response"]["body"]["error"]["code"] == "context_length_exceeded"
    assert all(b"\n" not in each.record for each in results.values())

    acquired, request = stage.scheduler.acquired[0], stage.server.requests[0]
    assert len(stage.server.requests) == 1
    assert (acquired.run_id, acquired.window, acquired.trace_id) == ("run-1", 4, "t-9")
    assert (request.owner.run_id, request.owner.line) == ("run-1", 1)
    assert request.emission == 3


async def test_a_record_is_ascii_and_echoes_its_custom_id(stage: Stage, worker: Worker) -> None:
    stage.server.reply = stage.saying("a\u2028b\u0085c")
    ids = ["../../etc/passwd", "\u2028\u0085", "é\U0001f600", " "]
    await index(stage, worker, b"".join(request_line(each) for each in ids))
    leader = Leader(worker)
    leader.hand_out(await entries(stage))
    leader.half_close()
    results = await leader.results()
    for line, custom_id in enumerate(ids, 1):
        record = results[line].record
        assert record.isascii()
        assert len(record.decode().splitlines()) == 1
        assert json.loads(record)["custom_id"] == custom_id
        assert results[line].custom_id == custom_id.encode()


async def run_lines(stage: Stage, worker: Worker, count: int) -> list[router_pb2.LineResult]:
    """What becomes of so many lines that nothing is wrong with."""
    await index(stage, worker, b"".join(request_line(f"id-{n}") for n in range(count)))
    leader = Leader(worker)
    leader.hand_out(await entries(stage))
    leader.half_close()
    results = await leader.results()
    return [results[line] for line in sorted(results)]


@pytest.mark.parametrize("reason", ["ENGINE_DIED", "UNAVAILABLE"])
async def test_lines_whose_server_was_lost_go_back_at_once_as_lost(
    stage: Stage, worker: Worker, reason: str
) -> None:
    stage.server.fail_after = (2, Unavailable("Socket closed", reason, None, 2.5))
    for result in await run_lines(stage, worker, 2):
        assert result.outcome == router_pb2.LINE_OUTCOME_LOST
        assert not result.record
        assert result.reason == "The model server was lost while it ran this request."
        assert result.retry_after_s == 2.5
    assert len(stage.server.requests) == 2


async def test_a_line_that_no_server_took_is_to_be_tried_again(
    stage: Stage, worker: Worker
) -> None:
    stage.server.failures = [Unavailable("This server is going away.", "DRAINING", None, 1.0)]
    (result,) = await run_lines(stage, worker, 1)
    assert result.outcome == router_pb2.LINE_OUTCOME_RETRY
    assert result.reason.startswith(f"No server of the model '{MODEL}' is up now")


@pytest.mark.parametrize("tokens", [0, 2])
@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (Internal("The model failed.", "STEP_FAULT"), "step_fault", "The model failed."),
        (KeyError("blk.7"), "internal_error", "The server failed on this request."),
        (
            Internal("Exception iterating responses: 'blk.7'", "UNKNOWN"),
            "internal_error",
            "The server failed on this request.",
        ),
    ],
)
async def test_a_line_that_its_server_fails_on_ends_once_with_its_own_error(
    stage: Stage, worker: Worker, tokens: int, error: Exception, code: str, message: str
) -> None:
    stage.server.fail_after = (tokens, error)
    (result,) = await run_lines(stage, worker, 1)
    assert result.outcome == router_pb2.LINE_OUTCOME_ERROR
    record = json.loads(result.record)
    assert (record["custom_id"], record["error"]) == ("id-0", None)
    assert record["response"]["status_code"] == 500
    assert record["response"]["body"]["error"] == {
        "message": message,
        "type": "server_error",
        "param": None,
        "code": code,
    }
    assert len(stage.server.requests) == 1


async def test_an_engines_refusal_of_a_line_is_its_error(stage: Stage, worker: Worker) -> None:
    await index(stage, worker, request_line("a"))
    stage.server.failures = [InvalidArgument("No.", "BAD", "sampling.seed")]
    leader = Leader(worker)
    leader.hand_out(await entries(stage))
    leader.half_close()
    results = await leader.results()
    assert results[1].outcome == router_pb2.LINE_OUTCOME_ERROR


async def test_a_line_without_a_scheduler_is_not_placed_here_but_handed_back(
    fresh: Stage, fresh_worker: Worker
) -> None:
    await index(fresh, fresh_worker, request_line("a"))
    known = Leader(fresh_worker)
    known.half_close()
    await known.results()
    await fresh.leaderships[0].resign()
    leader = Leader(fresh_worker)
    leader.hand_out(await entries(fresh))
    leader.half_close()
    results = await leader.results()
    assert results[1].outcome == router_pb2.LINE_OUTCOME_RETRY
    assert fresh.server.requests == []


async def test_cancelled_lines_are_answered_as_such_and_the_others_go_on(
    stage: Stage, worker: Worker
) -> None:
    await index(stage, worker, b"".join(request_line(f"id-{n}") for n in range(4)))
    stage.server.gate = Gate(open_after=1)
    leader = Leader(worker)
    leader.hand_out(await entries(stage))
    await stage.server.wait_until(lambda server: len(server.running) == 4)
    leader.cancel([2, 3, 77])
    await stage.server.wait_until(lambda server: len(server.running) == 2)
    stage.server.gate.open()
    leader.half_close()
    results = await leader.results()
    output, cancelled = router_pb2.LINE_OUTCOME_OUTPUT, router_pb2.LINE_OUTCOME_CANCELLED
    assert {line: each.outcome for line, each in results.items()} == {
        1: output,
        2: cancelled,
        3: cancelled,
        4: output,
    }
    assert results[2].custom_id == b"id-1"


async def test_a_broken_stream_cancels_what_it_had(stage: Stage, worker: Worker) -> None:
    await index(stage, worker, b"".join(request_line(f"id-{n}") for n in range(3)))
    stage.server.gate = Gate(open_after=1)
    leader = Leader(worker)
    leader.hand_out(await entries(stage))
    await stage.server.wait_until(lambda server: len(server.running) == 3)
    leader.call.cancel()
    await stage.server.wait_until(lambda server: not server.running)
    assert len(stage.server.cancelled) == 3


async def is_aborted(reason: str, doing: Awaitable[object]) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await doing
    assert caught.value.code() == grpc.StatusCode.ABORTED
    assert from_rpc_error(caught.value).reason == reason


async def test_an_older_leader_is_refused(fresh: Stage, fresh_worker: Worker) -> None:
    older = fresh_worker.fleet
    newer = Leader(fresh_worker, epoch=await fresh_worker.elect_fleet())
    newer.half_close()
    await newer.results()
    await is_aborted("EPOCH_STALE", Leader(fresh_worker, epoch=older).results())


async def test_a_leader_that_lost_is_refused_where_no_other_was_heard_of(
    fresh: Stage, fresh_worker: Worker
) -> None:
    older = fresh_worker.fleet
    await fresh_worker.elect_fleet()
    await is_aborted("EPOCH_STALE", Leader(fresh_worker, epoch=older).results())


async def test_an_epoch_that_nobody_was_elected_with_shuts_out_no_leader(
    stage: Stage, worker: Worker
) -> None:
    await is_aborted("EPOCH_UNKNOWN", Leader(worker, epoch=99_999_999).results())
    await is_aborted("EPOCH_UNKNOWN", Leader(worker, epoch=9, fleet="none.float32").results())
    await is_aborted("EPOCH_UNKNOWN", index(stage, worker, request_line("a"), epoch=99_999_999))
    for fleet, epoch in [("a/b", 9), (FLEET, 0)]:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await Leader(worker, epoch=epoch, fleet=fleet).results()
        assert caught.value.code() in (
            grpc.StatusCode.INVALID_ARGUMENT,
            grpc.StatusCode.ABORTED,
        )
    done = await index(stage, worker, request_line("a"))
    leader = Leader(worker)
    leader.hand_out(await entries(stage))
    leader.half_close()
    assert (done.lines, sorted(await leader.results())) == (1, [1])


@pytest.mark.parametrize("secret", [None, "", "0" * 43, "~"])
async def test_only_a_member_of_the_cluster_may_call(
    stage: Stage, worker: Worker, secret: str | None
) -> None:
    await index(stage, worker, request_line("a"))
    metadata = None if secret is None else ((METADATA_KEY, secret),)
    asked = router_pb2.IndexRequest(
        run_id="run-1",
        epoch=worker.intake,
        account="local",
        input_object=INPUT,
        index_object=INDEX,
    )
    start = router_pb2.ExecuteRequest(start=router_pb2.ExecuteStart(run_id="run-1"))
    for call in (
        worker.stub.Index(asked, metadata=metadata),
        worker.stub.Execute(iter([start]), metadata=metadata),
    ):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await anext(aiter(call))
        assert caught.value.code() == grpc.StatusCode.UNAUTHENTICATED
        assert from_rpc_error(caught.value).reason == "NO_MEMBER"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("input_object", "files/other/file-1"),
        ("input_object", "files/local/../other/file-1"),
        ("input_object", "runs/run-1/index"),
        ("account", "other"),
        ("index_object", "runs/run-2/index"),
        ("index_object", INPUT),
        ("run_id", "run-2"),
        ("run_id", "../files/local/x"),
    ],
)
async def test_objects_are_those_of_the_run_and_account_that_are_named(
    stage: Stage, worker: Worker, field: str, value: str
) -> None:
    refused: list[Awaitable[object]] = [index(stage, worker, request_line("a"), **{field: value})]
    if field in ("input_object", "account"):
        refused.append(Leader(worker, **{field: value}).results())
    for call in refused:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call
        assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert await stage.objects.get(INPUT) == request_line("a")
    assert not await stage.objects.exists(INDEX)


async def test_an_older_intake_leader_is_refused(fresh: Stage, fresh_worker: Worker) -> None:
    older = fresh_worker.intake
    await fresh_worker.elect_intake()
    await index(fresh, fresh_worker, request_line("a"))
    before = await entries(fresh)
    refused = index(fresh, fresh_worker, request_line("a") + request_line("b"), epoch=older)
    await is_aborted("EPOCH_STALE", refused)
    assert await entries(fresh) == before
    # A fleet's epochs are another election's.
    assert fresh_worker.fleet < older
    leader = Leader(fresh_worker)
    leader.half_close()
    assert await leader.results() == {}


@pytest.mark.parametrize(("elected", "reason"), [(True, "EPOCH_STALE"), (False, "STREAM_REPLACED")])
async def test_a_later_stream_of_a_run_cuts_the_one_before(
    fresh: Stage, fresh_worker: Worker, elected: bool, reason: str
) -> None:
    await index(fresh, fresh_worker, b"".join(request_line(f"id-{n}") for n in range(3)))
    fresh.server.gate = gate = Gate(open_after=1)
    older, other = Leader(fresh_worker), Leader(fresh_worker, run_id="run-2")
    lines = await entries(fresh)
    older.hand_out(lines[:2])
    other.hand_out(lines[2:])
    await fresh.server.wait_until(lambda server: len(server.running) == 3)
    if elected:
        await fresh_worker.elect_fleet()
    newer = Leader(fresh_worker)
    await is_aborted(reason, older.results())
    await fresh.server.wait_until(lambda server: len(server.cancelled) == 2)
    newer.hand_out(lines[:2])
    await fresh.server.wait_until(lambda server: len(server.running) == 3)
    gate.open()
    for leader in (newer, other):
        leader.half_close()
    assert sorted(await newer.results()) == [1, 2]
    # Another run's stream goes on.
    assert sorted(await other.results()) == [3]


async def test_a_leader_that_reads_no_answers_is_cut_all_the_same(
    fresh: Stage, fresh_worker: Worker
) -> None:
    await index(fresh, fresh_worker, request_line("a"))
    fresh.server.gate = Gate(open_after=1)
    paused = Leader(fresh_worker)
    paused.hand_out(await entries(fresh))
    await fresh.server.wait_until(lambda server: len(server.running) == 1)
    newer = Leader(fresh_worker, epoch=await fresh_worker.elect_fleet())
    await fresh.server.wait_until(lambda server: len(server.cancelled) == 1)
    # What it still hands out is not begun.
    paused.hand_out(await entries(fresh))
    newer.half_close()
    assert await newer.results() == {}
    assert len(fresh.server.requests) == 1
    await is_aborted("EPOCH_STALE", paused.results())


async def test_two_batches_with_equal_custom_ids_keep_their_answers_apart(
    stage: Stage, worker: Worker
) -> None:
    stage.server.reply = lambda request, choice: [*request.prompt[-40:], stage.server.end_token]
    leaders = []
    for number in (1, 2):
        content = b"".join(request_line(f"id-{n}", f"batch {number} line {n}") for n in range(5))
        await index(
            stage,
            worker,
            content,
            run_id=f"run-{number}",
            index_object=f"runs/run-{number}/index",
        )
        await stage.objects.put(f"files/local/in-{number}", content)
        leader = Leader(worker, run_id=f"run-{number}", input_object=f"files/local/in-{number}")
        data = await stage.objects.get(f"runs/run-{number}/index")
        leader.hand_out(list(unpack_entries(data)))
        leader.half_close()
        leaders.append(leader)
    for number, leader in enumerate(leaders, 1):
        for line, result in (await leader.results()).items():
            record = json.loads(result.record)
            assert record["custom_id"] == f"id-{line - 1}"
            text = record["response"]["body"]["choices"][0]["message"]["content"]
            assert f"batch {number} line {line - 1}" in text
    assert len({request.step_id for request in stage.server.requests}) == 10
