"""Leaders die with step reports that they have not acknowledged: each step is booked once."""

from __future__ import annotations

import signal
from pathlib import Path

import msgspec
import pytest

from impala.modelserver.v1 import modelserver_pb2, modelserver_pb2_grpc
from libs.cluster.client import EtcdClient
from libs.records import keys
from libs.records.batch import RunRecord
from libs.testing.etcd import EtcdProcess
from tests.cluster_state.setup import (
    client_of,
    completed,
    each_line_once,
    leader,
    running,
)
from tests.services.cluster import Cluster
from tests.services.load import submit

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.xdist_group("cluster-state"),
]
SERVERS = ("modelserver-1", "modelserver-2")
LINES, TOKENS, KILLS = 240, 12, 4


async def states(cluster: Cluster) -> list[modelserver_pb2.State]:
    found = []
    for name in SERVERS:
        async with cluster.channel(name) as channel:
            stub = modelserver_pb2_grpc.ModelServerStub(channel)
            found.append(await stub.GetState(modelserver_pb2.GetStateRequest(), timeout=30))
    return found


async def test_leaders_that_are_killed_lose_no_report_and_book_none_twice(tmp_path: Path) -> None:
    """All engine time of this cluster is one run's, so what is booked to it, over all its leaders,
    is what the servers were busy: a report lost or booked twice would show as the difference."""
    with EtcdProcess() as etcd:
        async with (
            running(tmp_path / "c", etcd.endpoint) as cluster,
            client_of(cluster) as client,
            EtcdClient([etcd.endpoint]) as direct,
        ):
            batch = await submit(client, LINES, TOKENS)
            epochs = set()
            for kill in range(1, KILLS + 1):
                await completed(client, batch, kill * LINES // (KILLS + 2))
                led = await leader(direct)
                epochs.add(led.epoch)
                cluster.signal(led.candidate_id, signal.SIGKILL)
                await cluster.ended(led.candidate_id)
                cluster.start(led.candidate_id)
                await cluster.ready(led.candidate_id)
            assert len(epochs) == KILLS
            await each_line_once(client, batch, LINES)
            run = (await client.get("/imp/v1/runs")).json()["data"][0]
            servers = await states(cluster)
            entry = await direct.get(keys.run(run["id"]))
            assert entry is not None
            booked = msgspec.json.decode(entry.value, type=RunRecord).ledger
            assert booked.computed_tokens == sum(map(computed, servers))
            busy_s = sum(each.busy_s_total for each in servers)
            # A step of the engine whose rows are all aborted meanwhile is nobody's share.
            assert booked.busy_engine_s == pytest.approx(busy_s, rel=0.03)


def computed(state: modelserver_pb2.State) -> int:
    """Tokens fed or sampled since its start."""
    fed = state.prompt_tokens_total - state.cached_tokens_total
    return int(fed + state.completion_tokens_total)
