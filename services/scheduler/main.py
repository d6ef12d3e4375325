"""`python -m services.scheduler.main`: one scheduler as a process."""

import asyncio
import dataclasses
import secrets
import sys

from impala.scheduler.v1 import scheduler_pb2_grpc
from libs.clock import SystemClock
from libs.cluster.errors import ClusterUnavailable
from libs.cluster.secret import ClusterSecret
from libs.config import parse_config
from libs.errors import StartupError
from libs.objects import check_store, open_store
from libs.obs import setup_logging
from libs.records import ids
from libs.records.store_mark import check_belonging
from libs.rpc import Shutdown, run_service
from libs.rpc.frame import client_tls, cluster_of, member_id_of, serve_member, server_of
from services.scheduler.adapters.batch_routers import GrpcBatchRouters
from services.scheduler.adapters.channels import Channels
from services.scheduler.adapters.model_servers import GrpcModelServers
from services.scheduler.api import SERVICE, SchedulerApi
from services.scheduler.app.executor import RunSettings
from services.scheduler.app.leader import Deps
from services.scheduler.app.run_log import FlushPolicy
from services.scheduler.app.scheduler import Scheduler
from services.scheduler.app.views import ClusterViews
from services.scheduler.config import SchedulerConfig
from services.scheduler.core.admission import AdmissionLimits
from services.scheduler.core.fleet import FleetLimits
from services.scheduler.core.run import RunLimits


async def serve(config: SchedulerConfig, shutdown: Shutdown) -> None:
    """Serve and stand for election until told to stop; then hand over at once."""
    clock = SystemClock()
    objects = open_store(config.objects)
    await check_store(objects, clock)
    config = _named(config)
    async with cluster_of(config, shutdown) as client:
        views = ClusterViews(client)
        secret = ClusterSecret(client, lambda: secrets.token_urlsafe(32))
        try:
            await views.start()
            await secret.start()
            await check_belonging(client, objects, lambda: secrets.token_hex(8))
        except ClusterUnavailable as error:
            raise StartupError(f"{error}; start etcd or give its address with --etcd.") from error
        channels = Channels(client_tls(config))
        deps = Deps(
            client=client,
            objects=objects,
            views=views,
            routers=GrpcBatchRouters(channels, lambda: secret.value),
            servers=GrpcModelServers(channels, clock),
            clock=clock,
            new_file_id=lambda: ids.file_id(int(clock.time() * 1000), secrets.token_bytes(8)),
            limits=_limits(config),
            runs=_runs(config),
        )
        scheduler = Scheduler(config.member, deps, election_ttl_s=config.election_ttl_s)
        rpc = server_of(config, [SERVICE], tunnelled=True)
        api = SchedulerApi(scheduler)
        for each in rpc.servers:
            scheduler_pb2_grpc.add_SchedulerServicer_to_server(api, each)
        try:
            async with asyncio.TaskGroup() as group:
                leading = group.create_task(scheduler.run())
                group.create_task(_stop_leading(leading, shutdown))
                await serve_member(
                    rpc,
                    client,
                    config,
                    shutdown,
                    service="scheduler",
                    incarnation=secrets.token_hex(8),
                )
        finally:
            await channels.close()
            await secret.aclose()
            await views.aclose()


async def _stop_leading(leading: asyncio.Task[None], shutdown: Shutdown) -> None:
    """Before the drain: who waits for a grant is told to go to the next leader."""
    await shutdown.wait()
    leading.cancel()


def _named(config: SchedulerConfig) -> SchedulerConfig:
    """With a member name, which the elections need before a port is bound."""
    if config.member:
        return config
    if config.port:
        name = member_id_of(config, "scheduler", f"{config.host}:{config.port}")
    else:
        name = f"scheduler-{secrets.token_hex(4)}"
    return dataclasses.replace(config, member=name)


def _limits(config: SchedulerConfig) -> FleetLimits:
    admission = AdmissionLimits(overcommit=config.overcommit, max_queue=config.max_queue)
    return FleetLimits(admission=admission)


def _runs(config: SchedulerConfig) -> RunSettings:
    limits = RunLimits(
        max_attempts=config.line_attempts,
        max_losses=config.line_losses,
        max_retry_s=config.line_retry_s,
    )
    return RunSettings(flush=FlushPolicy(interval_s=config.flush_s), limits=limits)


def main() -> None:
    config = parse_config(SchedulerConfig, sys.argv[1:], prog="scheduler")
    setup_logging("scheduler", config.member, as_json=config.log_json, level=config.log_level)
    run_service(lambda shutdown: serve(config, shutdown), name="scheduler")


if __name__ == "__main__":
    main()
