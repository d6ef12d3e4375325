"""From a ServiceConfig to a served member of the cluster: the part of main that services share.

A service's `serve` builds its app and servicer and calls `serve_member`; services/kvstore/main.py
shows the whole of it.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from libs.cluster.access import follow_access
from libs.cluster.client import EtcdClient
from libs.cluster.errors import ClusterUnavailable, PermissionRefused
from libs.cluster.keys import ROOT
from libs.cluster.membership import Membership
from libs.cluster.password import password_in
from libs.config import ServiceConfig
from libs.errors import StartupError
from libs.obs import serve_metrics
from libs.rpc.lifecycle import Shutdown
from libs.rpc.own_certificate import look_over
from libs.rpc.server import RpcServer
from libs.rpc.tls import ClientTls, ServerTls

log = logging.getLogger(__name__)

_WILDCARDS = ("0.0.0.0", "::", "")
_ASK_ETCD_EVERY_S = 0.5


def server_of(
    config: ServiceConfig, service_names: Sequence[str], *, tunnelled: bool = False
) -> RpcServer:
    """The RpcServer that the flags ask for, not started."""
    return RpcServer(
        service_names,
        config.host,
        config.port,
        tls=server_tls(config),
        allow_insecure=config.insecure,
        tunnelled=tunnelled,
    )


def start_metrics(config: ServiceConfig) -> None:
    """The Prometheus endpoint, where one is asked for; under TLS like the rest, and read without a
    certificate. Raises StartupError."""
    if config.metrics_port < 0:
        return
    tls = None
    if config.tls_cert is not None and config.tls_key is not None:
        tls = ServerTls(config.tls_cert, config.tls_key).context()
    port = serve_metrics(config.metrics_port, config.host, tls=tls)
    log.info("metrics", extra={"port": port})


def server_tls(config: ServiceConfig) -> ServerTls | None:
    if config.tls_cert is None or config.tls_key is None:
        return None
    return ServerTls(config.tls_cert, config.tls_key, config.tls_ca)


def client_tls(config: ServiceConfig) -> ClientTls | None:
    """How this member dials its peers: with its own certificate, trusting the cluster's CA."""
    if config.tls_ca is None:
        return None
    return ClientTls(config.tls_ca, config.tls_cert, config.tls_key, config.tls_name or None)


def etcd_tls(config: ServiceConfig) -> ClientTls | None:
    """How etcd is dialled; None = without TLS."""
    if config.etcd_ca is None and config.etcd_cert is None:
        return None
    return ClientTls(config.etcd_ca, config.etcd_cert, config.etcd_key)


def etcd_client(config: ServiceConfig) -> EtcdClient:
    """As the flags say: where it is, by which certificate, as which user."""
    file = config.etcd_password_file
    return EtcdClient(
        config.etcd,
        tls=etcd_tls(config),
        user=config.etcd_user or None,
        password=None if file is None else password_in(file),
    )


def address_for_peers(config: ServiceConfig, rpc: RpcServer) -> str:
    """host:port that others dial: as advertised, else as bound, with this host's name for a
    wildcard."""
    if config.advertise:
        return config.advertise
    return f"{socket.gethostname()}:{rpc.port}" if is_wildcard(rpc.host) else rpc.address


def host_of(address: str) -> str:
    """Of a "host:port"; an IPv6 address without its brackets."""
    return address.rpartition(":")[0].strip("[]")


def is_wildcard(host: str) -> bool:
    """Whether a server bound to it listens on every address of its machine."""
    return host in _WILDCARDS


def member_id_of(config: ServiceConfig, service: str, address: str) -> str:
    """The configured name, else one that the address makes: a restart on it is the same member."""
    return config.member or f"{service}-{address.replace(':', '-').replace('/', '-')}"


@asynccontextmanager
async def cluster_of(config: ServiceConfig, shutdown: Shutdown) -> AsyncIterator[EtcdClient]:
    """A client of the cluster's etcd, known to answer. Services may be started before etcd: it is
    waited for, for so long as the flags say. Raises StartupError when it does not answer by then,
    or refuses access, or the process is told to stop first, and ConfigError at once for
    certificates that cannot be used."""
    if config.tls_cert is not None and config.tls_key is not None:
        look_over(config.tls_cert, config.tls_key, config.tls_ca)
    async with etcd_client(config) as client:
        await _wait_for(client, config.etcd_wait_s, shutdown)
        yield client


async def _wait_for(client: EtcdClient, within_s: float, shutdown: Shutdown) -> None:
    """Ends at once when the process is told to stop, even while etcd is being asked."""
    asking = asyncio.create_task(_until_it_answers(client, within_s))
    stopping = asyncio.create_task(shutdown.wait())
    try:
        await asyncio.wait((asking, stopping), return_when=asyncio.FIRST_COMPLETED)
        if not asking.done():
            raise StartupError(
                "Stopped before etcd answered: start etcd or give its address with --etcd."
            )
        asking.result()
    finally:
        for task in (asking, stopping):
            task.cancel()
        await asyncio.gather(asking, stopping, return_exceptions=True)


async def _until_it_answers(client: EtcdClient, within_s: float) -> None:
    deadline = asyncio.get_running_loop().time() + within_s
    waits = False
    while True:
        try:
            await client.get(ROOT)
            return
        except PermissionRefused as error:
            raise StartupError(f"{error}.") from error
        except ClusterUnavailable as error:
            if asyncio.get_running_loop().time() + _ASK_ETCD_EVERY_S > deadline:
                raise StartupError(
                    f"{error}; start etcd or give its address with --etcd."
                ) from error
            if not waits:
                log.warning("waiting for etcd: %s", error)
            waits = True
        await asyncio.sleep(_ASK_ETCD_EVERY_S)


async def serve_member(
    rpc: RpcServer,
    etcd: EtcdClient,
    config: ServiceConfig,
    shutdown: Shutdown,
    *,
    service: str,
    incarnation: str,
    info: Mapping[str, Any] | None = None,
) -> None:
    """Bind, register, serve until `shutdown`, leave the cluster, drain. Health says NOT_SERVING
    while etcd refuses access.

    incarnation: a random name for this life of the process. info: published besides `address` and
    `incarnation`. Raises StartupError when the port is taken or another process takes this
    member's name.
    """
    await rpc.start()
    try:
        start_metrics(config)
        address = address_for_peers(config, rpc)
        member_id = member_id_of(config, service, address)
        published = {"address": address, "incarnation": incarnation, **(info or {})}
        membership = Membership(etcd, service, member_id, published, incarnation=incarnation)
        await membership.start()
        async with asyncio.TaskGroup() as group:
            taken = group.create_task(_stop_when_superseded(membership, member_id))
            rpc.set_serving(True)
            access = group.create_task(follow_access(etcd, rpc.set_serving))
            log.info("serving", extra={"member": member_id, "address": address})
            await shutdown.wait()
            taken.cancel()
            access.cancel()
            rpc.set_serving(False)
            await membership.leave()
        await rpc.drain(config.drain_s)
    finally:
        await rpc.stop()


async def _stop_when_superseded(membership: Membership, member_id: str) -> None:
    await membership.superseded.wait()
    raise StartupError(
        f"Another process has registered as {member_id}; give each its own --member name."
    )
