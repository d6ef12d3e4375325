"""Mutual TLS to etcd: calls, streams and leases alike; without a certificate nobody gets in."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from libs.cluster.client import EtcdClient
from libs.cluster.errors import ClusterUnavailable
from libs.cluster.watch import PutEvent
from libs.rpc.tls import ClientTls, ServerTls
from libs.testing.etcd import EtcdProcess
from libs.testing.tls import Authority
from libs.testing.waiting import eventually


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


@pytest.mark.parametrize(
    ("tls", "why"),
    [
        ("plain", "it hung up at once, .* check --tls, or --etcd-cert here"),
        (
            "no certificate",
            "it refuses this side's .*: check --tls or --etcd-cert$",
        ),
        (
            "another CA",
            "its certificate is not of the CA .*: check --tls or --etcd-ca$",
        ),
    ],
)
async def test_without_what_it_asks_for_there_is_one_clear_sentence(
    tmp_path: Path, authority: Authority, tls_etcd: EtcdProcess, tls: str, why: str
) -> None:
    files = {
        "plain": None,
        "no certificate": ClientTls(authority.cert),
        "another CA": ClientTls(Authority(tmp_path / "other").cert, *authority.issue("router")),
    }[tls]
    async with EtcdClient([tls_etcd.endpoint], tls=files, deadline_s=0.5) as client:
        with pytest.raises(ClusterUnavailable, match=f"cannot be reached: {why}"):
            await client.get("/impala/a")


async def test_renewed_certificates_are_shown_to_an_etcd_that_asks_for_them(
    tmp_path: Path, authority: Authority
) -> None:
    """etcd takes another CA only after a restart; a client that goes on reads its own anew."""
    new = Authority(tmp_path / "new")
    etcd = tmp_path / "etcd"
    etcd.mkdir()
    client_files = etcd / "ca.crt", etcd / "tls.crt", etcd / "tls.key"

    def renew(of: Authority) -> None:
        for source, path in zip((of.cert, *of.issue("router")), client_files, strict=True):
            path.write_bytes(source.read_bytes())

    renew(authority)
    cert, key = authority.issue("etcd")
    with EtcdProcess(tls=ServerTls(cert, key, client_ca=authority.cert)) as process:
        tls = ClientTls(*client_files)
        async with EtcdClient([process.endpoint], tls=tls, deadline_s=1) as client:
            await client.put("/impala/a", b"1")
            for source, path in zip(new.issue("etcd"), (cert, key), strict=True):
                path.write_bytes(source.read_bytes())
            authority.cert.write_bytes(new.cert.read_bytes())
            process.stop()
            await asyncio.to_thread(process.start)
            with pytest.raises(ClusterUnavailable):
                await client.get("/impala/a")
            renew(new)

            async def is_read() -> bool:
                with contextlib.suppress(ClusterUnavailable):
                    return await client.get("/impala/a") is not None
                return False

            await eventually(is_read)
