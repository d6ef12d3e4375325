"""`python -m services.leap.main`: Leap as a process."""

import secrets
import sys

from impala.leap.v1 import leap_pb2_grpc
from libs.clock import SystemClock
from libs.cluster.members import Members
from libs.config import parse_config
from libs.obs import setup_logging
from libs.rpc import Shutdown, run_service
from libs.rpc.frame import cluster_of, serve_member, server_of
from services.leap.adapters.etcd_versions import EtcdVersions
from services.leap.adapters.member_replicas import MemberReplicas
from services.leap.api import LeapApi
from services.leap.app import LeapApp
from services.leap.config import LeapConfig

SERVICE = "impala.leap.v1.Leap"


async def serve(config: LeapConfig, shutdown: Shutdown) -> None:
    """Serve until told to stop."""
    incarnation = secrets.token_hex(8)
    rpc = server_of(config, [SERVICE])
    async with cluster_of(config, shutdown) as etcd, Members(etcd, "modelserver") as servers:
        app = LeapApp(EtcdVersions(etcd), MemberReplicas(servers), SystemClock())
        leap_pb2_grpc.add_LeapServicer_to_server(LeapApi(app), rpc.server)
        await serve_member(rpc, etcd, config, shutdown, service="leap", incarnation=incarnation)


def main() -> None:
    config = parse_config(LeapConfig, sys.argv[1:], prog="leap")
    setup_logging("leap", config.member, as_json=config.log_json, level=config.log_level)
    run_service(lambda shutdown: serve(config, shutdown), name="leap")


if __name__ == "__main__":
    main()
