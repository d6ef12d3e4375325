"""The router's ports under TLS: one folder, read again when it is renewed."""

from __future__ import annotations

import contextlib
import ssl
from pathlib import Path

import httpx
import pytest

from impala.router.v1 import router_pb2, router_pb2_grpc
from libs.config import ConfigError
from libs.errors import ImpalaError
from libs.rpc import ClientTls, call, connect
from libs.testing.tls import Authority
from libs.testing.waiting import eventually
from services.router.config import RouterConfig
from services.router.tests.conftest import Stage


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "ca")


def fill(folder: Path, authority: Authority) -> Path:
    """A folder as `--tls` takes it."""
    folder.mkdir(exist_ok=True)
    cert, key = authority.issue("router")
    for source, name in ((cert, "tls.crt"), (key, "tls.key"), (authority.cert, "ca.crt")):
        (folder / name).write_bytes(source.read_bytes())
    return folder


async def models_over(
    url: str, ca: Path, identity: tuple[Path, Path] | None = None
) -> httpx.Response:
    context = ssl.create_default_context(cafile=ca)
    if identity is not None:
        context.load_cert_chain(*identity)
    async with httpx.AsyncClient(verify=context, trust_env=False) as client:
        return await client.get(f"{url}/v1/models")


async def test_clients_need_the_ca_and_no_certificate(
    bare: Stage, tmp_path: Path, authority: Authority
) -> None:
    folder = fill(tmp_path / "tls", authority)
    router = await bare.add_router(tls=folder, etcd_plain=True)
    assert router.http_url.startswith("https://")
    assert (await models_over(router.http_url, authority.cert)).status_code == 200
    with pytest.raises(httpx.TransportError):
        async with httpx.AsyncClient(trust_env=False) as client:
            await client.get(router.http_url.replace("https", "http") + "/v1/models")
    async with connect(router.address, ClientTls(authority.cert)) as channel:
        stub = router_pb2_grpc.BatchesStub(channel)
        await call(stub.ListBatches, router_pb2.ListBatchesRequest(), timeout_s=10)


async def test_clients_are_asked_for_a_certificate_where_that_is_wanted(
    bare: Stage, tmp_path: Path, authority: Authority
) -> None:
    folder = fill(tmp_path / "tls", authority)
    router = await bare.add_router(tls=folder, tls_clients=True, etcd_plain=True)
    known = authority.issue("client")
    assert (await models_over(router.http_url, authority.cert, known)).status_code == 200
    with pytest.raises(httpx.TransportError):
        await models_over(router.http_url, authority.cert)
    request = router_pb2.ListBatchesRequest()
    async with connect(router.address, ClientTls(authority.cert, *known)) as channel:
        stub = router_pb2_grpc.BatchesStub(channel)
        await call(stub.ListBatches, request, timeout_s=10)
    async with connect(router.address, ClientTls(authority.cert)) as channel:
        stub = router_pb2_grpc.BatchesStub(channel)
        with pytest.raises(ImpalaError):
            await call(stub.ListBatches, request, timeout_s=10)


async def test_a_renewed_certificate_is_served_without_a_restart(
    bare: Stage, tmp_path: Path, authority: Authority
) -> None:
    folder, new = fill(tmp_path / "tls", authority), Authority(tmp_path / "new")
    router = await bare.add_router(tls=folder, etcd_plain=True)
    context = ssl.create_default_context(cafile=authority.cert)
    async with httpx.AsyncClient(verify=context, trust_env=False) as connected:
        url = f"{router.http_url}/v1/models"
        assert (await connected.get(url)).status_code == 200

        fill(folder, new)

        async def is_renewed() -> bool:
            with contextlib.suppress(httpx.TransportError):
                return (await models_over(router.http_url, new.cert)).status_code == 200
            return False

        await eventually(is_renewed)
        assert (await connected.get(url)).status_code == 200, "its connection goes on"
    with pytest.raises(httpx.TransportError):
        await models_over(router.http_url, authority.cert)


def test_asking_clients_for_certificates_needs_a_ca() -> None:
    with pytest.raises(ConfigError, match="--tls-clients needs a CA"):
        RouterConfig(no_auth=True, tls_clients=True)
