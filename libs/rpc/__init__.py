"""gRPC as every Impala service speaks it: one server frame, one client, one table of statuses."""

from libs.rpc.channel import call, connect, remaining, stream, upload
from libs.rpc.lifecycle import Shutdown, run_service
from libs.rpc.sending import keep_status
from libs.rpc.server import PortInUse, RpcServer
from libs.rpc.status import (
    ACCEPTED,
    abort,
    error_of,
    from_rpc_error,
    status_of,
    trailers_of,
    was_accepted,
    was_cut,
)
from libs.rpc.tls import ClientTls, ServerTls

__all__ = [
    "ACCEPTED",
    "ClientTls",
    "PortInUse",
    "RpcServer",
    "ServerTls",
    "Shutdown",
    "abort",
    "call",
    "connect",
    "error_of",
    "from_rpc_error",
    "keep_status",
    "remaining",
    "run_service",
    "status_of",
    "stream",
    "trailers_of",
    "upload",
    "was_accepted",
    "was_cut",
]
