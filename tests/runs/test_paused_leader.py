"""A leader that is paused past its lease and wakes up: it has no say any more."""

from __future__ import annotations

import signal
from pathlib import Path

import grpc
import msgspec
import pytest

from impala.common.v1 import common_pb2
from impala.scheduler.v1 import scheduler_pb2, scheduler_pb2_grpc
from libs.cluster.client import EtcdClient
from libs.cluster.election import Leader
from libs.errors import FailedPrecondition
from libs.records import keys
from libs.records.batch import RunRecord
from libs.rpc import from_rpc_error
from libs.testing.etcd import EtcdProcess
from libs.testing.waiting import eventually
from tests.cluster_state.setup import leader, running
from tests.runs.api import api_of, chat_line, ids
from tests.services.cluster import MODEL, Cluster

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.xdist_group("runs-paused"),
]

LINES = 60
WITHIN_S = 60.0


async def test_a_leader_that_wakes_up_names_no_segment_grants_nothing_and_writes_nothing(
    tmp_path: Path,
) -> None:
    with EtcdProcess() as etcd:
        async with (
            EtcdClient([etcd.endpoint]) as client,
            running(tmp_path / "cluster", etcd.endpoint) as cluster,
            api_of(cluster["router"].url) as api,
        ):
            lines = [chat_line(MODEL, f"l{at}", f"Number {at}", 60) for at in range(LINES)]
            batch_id = await api.submit("".join(lines))
            run_id = str((await api.recorded(batch_id, 5))["run_id"])
            old = await leader(client)
            cluster.signal(old.candidate_id, signal.SIGSTOP)
            new = await followed(client, old.epoch)
            assert new.candidate_id != old.candidate_id
            before = await record_of(client, run_id)
            await api.recorded(batch_id, before.completed + before.failed + 5)
            cluster.signal(old.candidate_id, signal.SIGCONT)
            await eventually(lambda: refuses_to_grant(cluster, old.candidate_id), within_s=WITHIN_S)
            batch = await api.ended(batch_id)
            run = await record_of(client, run_id)

            assert batch["status"] == "completed"
            assert batch["request_counts"] == {"total": LINES, "completed": LINES, "failed": 0}
            assert ids(await api.lines(batch["output_file_id"])) == sorted(
                f"l{at}" for at in range(LINES)
            )
            named_before = [segment.object for segment in before.segments]
            named = [segment.object for segment in run.segments]
            assert named[: len(named_before)] == named_before
            assert {epoch_of(each) for each in named[len(named_before) :]} == {new.epoch}
            assert (await leader(client)) == new
            assert "leads no more" in cluster[old.candidate_id].said()


async def followed(client: EtcdClient, epoch: int) -> Leader:
    """The leader after the one of `epoch`, which is paused."""

    async def is_followed() -> bool:
        return (await leader(client)).epoch != epoch

    await eventually(is_followed, within_s=WITHIN_S)
    return await leader(client)


async def refuses_to_grant(cluster: Cluster, member: str) -> bool:
    """It says that it does not lead; it must never grant."""
    request = scheduler_pb2.AcquireRequest(
        step_id="late", model=MODEL, prompt_tokens=10, max_tokens=1, window=common_pb2.WINDOW_BATCH
    )
    async with cluster.channel(member) as channel:
        try:
            answer = await scheduler_pb2_grpc.SchedulerStub(channel).Acquire(request, timeout=5)
        except grpc.aio.AioRpcError as error:
            told = from_rpc_error(error)
            return isinstance(told, FailedPrecondition) and told.reason == "NOT_LEADER"
    raise AssertionError(f"{member} granted {answer}")


async def record_of(client: EtcdClient, run_id: str) -> RunRecord:
    entry = await client.get(keys.run(run_id))
    assert entry is not None
    return msgspec.json.decode(entry.value, type=RunRecord)


def epoch_of(segment: str) -> int:
    return int(segment.rpartition("/")[2].partition("-")[0])
