"""Who etcd does not let in: at the start, while it runs, and again afterwards; and the secret that
members show each other."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from libs.cluster.client import EtcdClient
from libs.cluster.keys import SECRET
from libs.testing.etcd import EtcdProcess
from libs.testing.waiting import eventually
from services.cli.supervisor.probes import grpc_serving
from tests.cluster_state.setup import WITHIN_S, client_of, each_line_once, running
from tests.services.cluster import Cluster, Member
from tests.services.load import Load, loaded, submit

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.xdist_group("cluster-state"),
]
TOKENS = 8
SERVICES = ("kvstore", "leap", "scheduler", "modelserver", "router")
SETTINGS = ("--etcd-user", "--etcd-password-file")


@pytest.fixture
async def etcd() -> AsyncIterator[EtcdProcess]:
    with EtcdProcess() as etcd:
        yield etcd


async def test_a_wrong_password_ends_each_service_with_one_sentence_that_names_the_settings(
    tmp_path: Path, etcd: EtcdProcess
) -> None:
    etcd.enable_auth(password="right")
    file = tmp_path / "password"
    file.write_text("wrong-one\n")
    user = ("--etcd-user", "root", "--etcd-password-file", str(file))
    async with Cluster(tmp_path / "c", etcd.endpoint) as cluster:
        for name in SERVICES:
            for flags in (user, ()):
                cluster.start(name, *flags)
                assert await cluster.ended(name) == 1
                said = cluster[name].said()
                last = said.strip().splitlines()[-1]
                assert "etcd refused access" in last
                assert all(each in last for each in SETTINGS)
                assert "wrong-one" not in said
        assert cluster.complaints() == {}


async def test_access_that_is_taken_away_is_told_of_and_all_goes_on_when_it_is_given_back(
    tmp_path: Path, etcd: EtcdProcess
) -> None:
    """A scheduler that can lead nothing does not say that it serves; chats go on without it."""
    etcd.enable_auth(password="first")
    file = tmp_path / "password"
    file.write_text("first\n")
    user = ("--etcd-user", "root", "--etcd-password-file", str(file))
    load = Load(TOKENS)
    async with (
        running(tmp_path / "c", etcd.endpoint, *user) as cluster,
        client_of(cluster) as client,
    ):
        schedulers = ("scheduler-1", "scheduler-2")
        serves = {each: grpc_serving(cluster[each].address) for each in schedulers}
        async with loaded([cluster["router"]], load):
            batch = await submit(client, 100, TOKENS)
            await eventually(lambda: load.least >= 2, within_s=WITHIN_S)
            etcd.change_password("second")
            for each in schedulers:
                await _ends_serving(serves[each])
                assert "etcd refused access" in cluster[each].said()
            refused = await client.post("/imp/v1/jobs", json={"model": "scripted"})
            assert refused.status_code == 503 and refused.headers["retry-after"] == "1"
            assert "--etcd" not in refused.text, "a client is not told how etcd is reached"
            answered = load.least
            await eventually(lambda: load.least > answered, within_s=WITHIN_S)
            file.write_text("second\n")
            for each in schedulers:
                await eventually(serves[each], within_s=WITHIN_S)
            await each_line_once(client, batch, 100)
        assert load.failures == []
        for member in cluster.members.values():
            assert not any(f" {each}" in member.said() for each in ("first\n", "second\n"))


async def _ends_serving(probe: Callable[[], Awaitable[bool]]) -> None:
    async def ended() -> bool:
        return not await probe()

    await eventually(ended, within_s=WITHIN_S)


async def _says(member: Member, words: str) -> None:
    await eventually(lambda: words in member.said(), within_s=WITHIN_S)


async def test_a_changed_secret_takes_effect_without_a_restart(
    tmp_path: Path, etcd: EtcdProcess
) -> None:
    async with running(tmp_path / "c", etcd.endpoint) as cluster, client_of(cluster) as client:
        await each_line_once(client, await submit(client, 5, TOKENS), 5)
        async with EtcdClient([etcd.endpoint]) as direct:
            # Twice: what a member knew before the last change is let in for a while.
            for secret in (b"1" * 43, b"2" * 43):
                await direct.put(SECRET, secret)
        told = "the cluster's secret has changed"
        members = [cluster[each] for each in ("scheduler-1", "scheduler-2", "router")]
        await eventually(lambda: all(told in each.said() for each in members), within_s=WITHIN_S)
        await each_line_once(client, await submit(client, 5, TOKENS), 5)


async def test_services_wait_for_an_etcd_that_is_away_and_say_so(
    tmp_path: Path, etcd: EtcdProcess
) -> None:
    etcd.kill()
    async with Cluster(tmp_path / "c", etcd.endpoint) as cluster:
        for name in SERVICES:
            cluster.start(name)
        for name in SERVICES:
            await _says(cluster[name], "waiting for etcd")
            assert not await grpc_serving(cluster[name].address)()
        await asyncio.to_thread(etcd.start)
        for name in SERVICES:
            await cluster.ready(name)
        for name in SERVICES:
            cluster.signal(name, signal.SIGTERM)
        assert [await cluster.ended(name) for name in SERVICES] == [0] * len(SERVICES)
        assert cluster.complaints() == {}
