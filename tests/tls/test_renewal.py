"""Certificates of a whole cluster are renewed while it works: nothing is restarted or fails."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
import pytest_asyncio

from libs.errors import ImpalaError
from libs.rpc import ClientTls
from libs.rpc.probe import ProbeConfig, probe
from libs.rpc.reloaded import LOOK_EVERY_S
from libs.testing.etcd import EtcdProcess
from libs.testing.tls import Authority, MountedSecret
from libs.testing.waiting import eventually
from tests.services.cluster import ALL, WITHIN_S, Cluster, Member
from tests.services.load import Load, finished, loaded, results, submit

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.xdist_group("tls-services"),
]
TOKENS, LINES = 8, 600


@dataclass(frozen=True)
class Renewable:
    """A cluster and its etcd, all of the CA `old`; the etcd would take the CA `new` as well."""

    cluster: Cluster
    etcd: MountedSecret
    members: MountedSecret
    old: Authority
    new: Authority


@pytest_asyncio.fixture
async def renewable(tmp_path: Path) -> AsyncIterator[Renewable]:
    old, new = Authority(tmp_path / "old", "old"), Authority(tmp_path / "new", "new")
    of_etcd, of_members = MountedSecret(tmp_path / "of-etcd"), MountedSecret(tmp_path / "members")
    # etcd reads its certificate at each handshake, but the CA at its start only.
    of_etcd.renew(old, old, new)
    of_members.renew(old)
    flags = {"modelserver": ["--step-s", "0.02", "--max-seqs", "16"]}
    with EtcdProcess(tls=of_etcd.server) as etcd:
        folder = tmp_path / "cluster"
        async with Cluster(folder, etcd.endpoint, flags, secret=of_members) as cluster:
            await cluster.up(*ALL)
            yield Renewable(cluster, of_etcd, of_members, old, new)


async def is_taken(member: Member, tls: ClientTls) -> bool:
    """Whether a connection made now, as this client, is served."""
    host, _, port = member.address.partition(":")
    settings = ProbeConfig(
        host=host, port=int(port), tls_ca=tls.ca, tls_cert=tls.cert, tls_key=tls.key
    )
    try:
        return await probe(settings) == "SERVING"
    except ImpalaError:
        return False


async def is_refused(member: Member, tls: ClientTls) -> bool:
    return not await is_taken(member, tls)


async def test_a_ca_is_replaced_while_batches_and_streams_go_on(
    renewable: Renewable, tmp_path: Path
) -> None:
    cluster, old, new = renewable.cluster, renewable.old, renewable.new
    router = cluster["router"]
    of_old = ClientTls(old.cert, *old.issue("of-old"))
    of_new = ClientTls(new.cert, *new.issue("of-new"))
    both = ClientTls(renewable.etcd.ca, *new.issue("of-new-trusting-both"))
    load = Load(TOKENS)

    async def all_take(tls: ClientTls) -> None:
        for name in ALL:
            await eventually(partial(is_taken, cluster[name], tls), within_s=WITHIN_S)
        # That servers have looked is seen; clients that looked just before do so again by then.
        looked = time.monotonic() + 2 * LOOK_EVERY_S
        await eventually(lambda: time.monotonic() > looked)

    async with loaded([router], load):
        async with router.http() as client:
            batch = await submit(client, LINES, TOKENS)
        renewable.members.renew(old, old, new)
        await all_take(both)
        renewable.members.renew(new, old, new)
        renewable.etcd.renew(new, old, new)
        await all_take(of_new)
        renewable.members.renew(new)
        for name in set(ALL) - {"router"}:
            await eventually(partial(is_refused, cluster[name], of_old), within_s=WITHIN_S)
        async with router.http() as client:
            assert (await client.get(f"/v1/batches/{batch}")).json()["status"] == "in_progress"
            before = load.least
            await eventually(lambda: load.least >= before + 2, within_s=WITHIN_S)
            done = await results(client, await finished(client, batch))
    assert done == sorted(f"l{at}" for at in range(LINES))
    assert load.failures == []
    assert [cluster[name].starts for name in ALL] == [1] * len(ALL)
    assert cluster.complaints() == {}
