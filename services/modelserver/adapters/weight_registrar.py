"""Tells Leap which weights are served here, and learns their version number."""

import logging

from impala.leap.v1 import leap_pb2, leap_pb2_grpc
from libs.clock import Clock
from libs.cluster.members import Members
from libs.errors import ImpalaError
from libs.rpc import ClientTls, call, connect

log = logging.getLogger(__name__)

_TIMEOUT_S = 5.0
_RETRY_S = 1.0


async def register_weights(
    manifest: leap_pb2.Manifest,
    leaps: Members,
    *,
    clock: Clock,
    tls: ClientTls | None = None,
) -> int:
    """The version's seq; tries until a Leap service answers. Registering twice is harmless."""
    request = leap_pb2.RegisterVersionRequest(manifest=manifest)
    waiting = False
    while True:
        for member in leaps.current().values():
            async with connect(str(member.info["address"]), tls) as channel:
                stub = leap_pb2_grpc.LeapStub(channel)
                try:
                    answer = await call(stub.RegisterVersion, request, timeout_s=_TIMEOUT_S)
                    return answer.version.seq
                except ImpalaError as error:
                    log.warning("Leap did not register the weights: %s", error)
        if not waiting:
            waiting = True
            log.info("waiting for a Leap service to number the served weights")
        await clock.sleep(_RETRY_S)
