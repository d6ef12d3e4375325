"""`python -m services.kvstore.main`: one kvstore as a process."""

import secrets
import sys

from impala.kvstore.v1 import kvstore_pb2_grpc
from libs.clock import SystemClock
from libs.config import parse_config
from libs.obs import METRICS, setup_logging
from libs.rpc import Shutdown, run_service
from libs.rpc.frame import cluster_of, serve_member, server_of
from services.kvstore.api import KvStoreApi
from services.kvstore.app import KvStoreApp
from services.kvstore.config import KvStoreConfig
from services.kvstore.core.store import BlockStore

SERVICE = "impala.kvstore.v1.KvStore"


async def serve(config: KvStoreConfig, shutdown: Shutdown) -> None:
    """Serve until told to stop."""
    incarnation = secrets.token_hex(8)
    app = KvStoreApp(BlockStore(config.memory_bytes), SystemClock(), METRICS)
    rpc = server_of(config, [SERVICE])
    kvstore_pb2_grpc.add_KvStoreServicer_to_server(KvStoreApi(app, incarnation), rpc.server)
    async with cluster_of(config, shutdown) as etcd:
        await serve_member(rpc, etcd, config, shutdown, service="kvstore", incarnation=incarnation)


def main() -> None:
    config = parse_config(KvStoreConfig, sys.argv[1:], prog="kvstore")
    setup_logging("kvstore", config.member, as_json=config.log_json, level=config.log_level)
    run_service(lambda shutdown: serve(config, shutdown), name="kvstore")


if __name__ == "__main__":
    main()
