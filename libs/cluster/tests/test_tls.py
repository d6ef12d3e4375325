"""Mutual TLS to etcd: calls, streams and leases alike; without a certificate nobody gets in."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from libs.cluster.client import EtcdClient
from libs.cluster.errors import ClusterUnavailable
from libs.cluster.watch import PutEvent
from libs.rpc.tls import ClientTls, ServerTls
from libs.testing.etcd import EtcdProcess
from libs.testing.tls import Authority


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def tls_etcd(authority: Authority) -> Iterator[EtcdProcess]:
    cert, key = authority.issue("etcd")
    with EtcdProcess(tls=ServerTls(cert, key, client_ca=authority.cert)) as etcd:
        yield etcd


async def test_a_client_with_a_certificate_reads_writes_watches_and_leases(
    authority: Authority, tls_etcd: EtcdProcess, prefix: str
) -> None:
    cert, key = authority.issue("router")
    tls = ClientTls(authority.cert, cert, key)
    async with EtcdClient([tls_etcd.endpoint], tls=tls) as client, client.watch(prefix) as watch:
        await anext(watch)
        lease = await client.lease(2)
        revision = await client.put(prefix + "a", b"1", lease=lease.id)
        item = await anext(watch)
        assert isinstance(item, PutEvent) and item.entry.mod_revision == revision
        await lease.revoke()
        assert await client.get(prefix + "a") is None


@pytest.mark.parametrize("tls", ["plain", "no certificate"])
async def test_without_a_certificate_there_is_one_clear_sentence(
    authority: Authority, tls_etcd: EtcdProcess, tls: str
) -> None:
    files = None if tls == "plain" else ClientTls(authority.cert)
    async with EtcdClient([tls_etcd.endpoint], tls=files, deadline_s=0.5) as client:
        with pytest.raises(ClusterUnavailable, match="cannot be reached: "):
            await client.get("/impala/a")
