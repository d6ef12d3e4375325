"""Leap as a process: registered, called, drained; and what it does not do yet."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from impala.common.v1 import common_pb2
from impala.leap.v1 import leap_pb2, leap_pb2_grpc
from libs.cluster.client import EtcdClient
from libs.cluster.members import Members
from libs.cluster.membership import Membership
from libs.errors import InvalidArgument, NotFound, Unimplemented
from libs.rpc import call, connect, stream
from libs.testing.etcd import EtcdProcess
from services.leap.tests.factories import manifest_of, message_of

NOT_YET = {
    "Push": leap_pb2.PushRequest,
    "Stage": leap_pb2.StageRequest,
    "Commit": leap_pb2.CommitRequest,
    "Abort": leap_pb2.AbortRequest,
    "Rollback": leap_pb2.RollbackRequest,
}


@dataclass
class Leap:
    """The process, its etcd, and its address."""

    process: subprocess.Popen[str]
    etcd: EtcdProcess
    address: str


@contextlib.contextmanager
def started(etcd: EtcdProcess) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "services.leap.main", "--port", "0", "--member", "leap-1"]
    process = subprocess.Popen(
        [*command, "--etcd", etcd.endpoint], stderr=subprocess.PIPE, text=True
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.fixture(scope="module")
def etcd() -> Iterator[EtcdProcess]:
    with EtcdProcess() as process:
        yield process


@pytest.fixture(scope="module")
def process(etcd: EtcdProcess) -> Iterator[subprocess.Popen[str]]:
    with started(etcd) as process:
        yield process


@pytest.fixture
async def leap(etcd: EtcdProcess, process: subprocess.Popen[str]) -> Leap:
    async with EtcdClient([etcd.endpoint]) as client, Members(client, "leap") as members:
        member = (await members.wait_for(1, timeout_s=20))["leap-1"]
    return Leap(process, etcd, str(member.info["address"]))


@pytest.fixture
async def stub(leap: Leap) -> AsyncIterator[Any]:
    async with connect(leap.address) as channel:
        yield leap_pb2_grpc.LeapStub(channel)


async def register(stub: Any, name: str, model: str) -> Any:
    manifest = message_of(manifest_of(name, model))
    request = leap_pb2.RegisterVersionRequest(manifest=manifest)
    return await call(stub.RegisterVersion, request, timeout_s=10)


async def test_a_version_is_registered_once_and_told_as_it_was(stub: Any) -> None:
    first, again = [await register(stub, "a", "m-register") for _ in range(2)]
    assert (first.version.seq, first.created) == (1, True)
    assert (again.version.seq, again.created) == (1, False)
    assert first.version.state == leap_pb2.Version.STATE_REGISTERED
    request = leap_pb2.GetVersionRequest(model="m-register", with_tensors=True)
    version = await call(stub.GetVersion, request, timeout_s=10)
    assert version.manifest == message_of(manifest_of("a", "m-register"))
    assert version.created_unix_ms == first.version.created_unix_ms > 0


async def test_versions_are_listed_newest_first_in_pages(stub: Any) -> None:
    for name in ("a", "b", "c"):
        await register(stub, name, "m-list")
    seqs, after = [], ""
    while True:
        page = common_pb2.PageRequest(limit=2, after=after)
        request = leap_pb2.ListVersionsRequest(model="m-list", page=page)
        answer = await call(stub.ListVersions, request, timeout_s=10)
        seqs.append([version.seq for version in answer.versions])
        after = answer.page.last_id
        if not answer.page.has_more:
            break
    assert seqs == [[3, 2], [1]]


async def test_the_status_shows_version_and_live_replicas(stub: Any, leap: Leap) -> None:
    registered = (await register(stub, "a", "m-status")).version
    info = {
        "address": "127.0.0.1:1",
        "model": "m-status",
        "phase": "serving",
        "weight_seq": 1,
        "weight_digest": registered.manifest.digest.hex(),
    }
    request = leap_pb2.StatusRequest(model="m-status")
    async with EtcdClient([leap.etcd.endpoint]) as client:
        server = Membership(client, "modelserver", "ms-1", info, incarnation="life-1")
        async with server, Members(client, "modelserver") as members:
            await members.wait_for(1, timeout_s=10)
            status = await _status_with_replica(stub, request)
    assert status.model == "m-status"
    assert status.serving == registered
    [replica] = status.replicas
    assert (replica.member_id, replica.state, replica.applied_seq) == ("ms-1", "SERVING", 1)
    assert replica.applied_digest == registered.manifest.digest


async def _status_with_replica(stub: Any, request: Any) -> Any:
    """Asks until Leap's own watch has seen the replica, too."""
    for _ in range(500):
        answer = await call(stub.Status, request, timeout_s=10)
        if answer.models[0].replicas:
            break
    return answer.models[0]


async def test_what_is_missing_or_malformed_is_named(stub: Any) -> None:
    request = leap_pb2.GetVersionRequest(model="m-none", seq=3)
    with pytest.raises(NotFound) as missing:
        await call(stub.GetVersion, request, timeout_s=10)
    assert missing.value.field == "seq"
    with pytest.raises(InvalidArgument) as empty:
        await call(stub.GetVersion, leap_pb2.GetVersionRequest(), timeout_s=10)
    assert empty.value.field == "model"
    with pytest.raises(InvalidArgument) as malformed:
        await call(stub.RegisterVersion, leap_pb2.RegisterVersionRequest(), timeout_s=10)
    assert malformed.value.field == "manifest.model"


@pytest.mark.parametrize("method", sorted(NOT_YET))
async def test_what_is_not_there_yet_says_so(stub: Any, method: str) -> None:
    called, request = getattr(stub, method), NOT_YET[method]()
    answer = (
        anext(stream(called, request, timeout_s=10))
        if method == "Push"
        else call(called, request, timeout_s=10)
    )
    with pytest.raises(Unimplemented, match=f"^{method} is not implemented: ") as caught:
        await answer
    assert caught.value.reason == "LIVE_UPDATES_NOT_IMPLEMENTED"


async def test_versions_outlive_the_process_and_sigterm_leaves_the_cluster() -> None:
    seen = []
    with EtcdProcess() as etcd:
        async with EtcdClient([etcd.endpoint]) as client, Members(client, "leap") as members:
            for _ in range(2):
                with started(etcd) as process:
                    member = (await members.wait_for(1, timeout_s=20))["leap-1"]
                    async with connect(member.info["address"]) as channel:
                        answer = await register(leap_pb2_grpc.LeapStub(channel), "a", "m")
                    seen.append((answer.version.seq, answer.created))
                    process.send_signal(signal.SIGTERM)
                    await members.wait_until(lambda: not members.current())
                    _, err = process.communicate(timeout=20)
                    assert process.returncode == 0, err
    assert seen == [(1, True), (1, False)]
