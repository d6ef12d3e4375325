"""The kvstore as a process beside a real etcd."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator

import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from impala.kvstore.v1 import kvstore_pb2, kvstore_pb2_grpc
from libs.cluster.client import EtcdClient
from libs.cluster.members import Members
from libs.rpc import call, connect
from libs.testing.etcd import EtcdProcess
from libs.testing.rpc import free_port
from services.kvstore.tests.factories import block_of, key_of, message_of

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
COMMAND = [sys.executable, "-m", "services.kvstore.main", "--memory-bytes", "64MiB"]


@pytest.fixture(scope="module")
def etcd() -> Iterator[EtcdProcess]:
    with EtcdProcess() as process:
        yield process


@contextlib.contextmanager
def kvstore(*flags: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen([*COMMAND, *flags], stderr=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@contextlib.asynccontextmanager
async def members(etcd: EtcdProcess) -> AsyncIterator[Members]:
    async with EtcdClient([etcd.endpoint]) as client, Members(client, "kvstore") as view:
        yield view


async def test_it_registers_serves_and_leaves_on_sigterm(etcd: EtcdProcess) -> None:
    flags = ("--etcd", etcd.endpoint, "--port", "0", "--member", "kv-1")
    async with members(etcd) as view:
        with kvstore(*flags) as process:
            member = (await view.wait_for(1, timeout_s=20))["kv-1"]
            async with connect(member.info["address"]) as channel:
                stub = kvstore_pb2_grpc.KvStoreStub(channel)

                async def one() -> AsyncIterator[kvstore_pb2.PutRequest]:
                    yield kvstore_pb2.PutRequest(block=message_of(block_of("a")))

                assert (await stub.Put(one(), timeout=10)).stored == 1
                got = stub.Get(kvstore_pb2.GetRequest(keys=key_of("a")), timeout=10)
                assert [each.inline async for each in got] == [block_of("a").payload]
                stats = await call(stub.Stats, kvstore_pb2.StatsRequest(), timeout_s=10)
                assert stats.incarnation == member.incarnation
                assert stats.tiers[0].limit_bytes == 64 << 20
                health = health_pb2_grpc.HealthStub(channel)
                request = health_pb2.HealthCheckRequest(service="impala.kvstore.v1.KvStore")
                seen = []
                async for answer in health.Watch(request, timeout=20):
                    seen.append(answer.status)
                    if answer.status == SERVING:
                        process.send_signal(signal.SIGTERM)
            assert seen[-2:] == [SERVING, NOT_SERVING]
            await view.wait_until(lambda: not view.current())
            _, err = process.communicate(timeout=20)
            assert process.returncode == 0, err


def test_without_etcd_it_says_what_to_do(etcd: EtcdProcess) -> None:
    nowhere = f"127.0.0.1:{free_port()}"
    flags = ("--etcd", nowhere, "--etcd-wait-s", "0", "--port", "0", "--log-level", "error")
    with kvstore(*flags) as process:
        _, err = process.communicate(timeout=30)
    assert process.returncode == 1
    assert err.startswith(f"kvstore: etcd at {nowhere} cannot be reached")
    assert err.endswith("; start etcd or give its address with --etcd.\n")
    assert err.count("\n") == 1


async def test_a_port_in_use_is_one_sentence(etcd: EtcdProcess) -> None:
    async with members(etcd) as view:
        with kvstore("--etcd", etcd.endpoint, "--port", "0", "--member", "first"):
            member = (await view.wait_for(1, timeout_s=20))["first"]
            port = member.info["address"].rpartition(":")[2]
            flags = ("--etcd", etcd.endpoint, "--port", port, "--log-level", "error")
            with kvstore(*flags) as second:
                _, err = second.communicate(timeout=30)
    assert second.returncode == 1
    assert err.startswith(f"kvstore: Port {port} on 127.0.0.1 is in use: ")
    assert err.count("\n") == 1


def test_a_wrong_flag_is_one_sentence_and_exit_code_2() -> None:
    with kvstore("--memory-byte", "1GiB") as process:
        _, err = process.communicate(timeout=30)
    assert process.returncode == 2
    assert err.startswith("kvstore: There is no flag --memory-byte, did you mean --memory-bytes?")
