"""Model servers' states over gRPC."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

from impala.modelserver.v1 import modelserver_pb2, modelserver_pb2_grpc
from libs.clock import Clock
from libs.errors import DeadlineExceeded, Unavailable
from libs.rpc import stream
from services.scheduler.adapters.channels import Channels
from services.scheduler.core.ledger import Clocks
from services.scheduler.core.server import Server
from services.scheduler.ports import ServerReport

INTERVAL_S = 0.5
STREAM_S = 3600.0
"""A stream's deadline. The next one begins at once: its end says nothing of the server."""


class GrpcModelServers:
    def __init__(
        self,
        channels: Channels,
        clock: Clock,
        interval_s: float = INTERVAL_S,
        stream_s: float = STREAM_S,
    ) -> None:
        self._channels = channels
        self._clock = clock
        self._interval_s = interval_s
        self._stream_s = stream_s

    async def watch(self, address: str) -> AsyncIterator[ServerReport]:
        stub = modelserver_pb2_grpc.ModelServerStub(self._channels.to(address))
        request = modelserver_pb2.WatchStateRequest(interval_s=self._interval_s)
        while True:
            states = stream(stub.WatchState, request, timeout_s=self._stream_s)
            try:
                async with contextlib.aclosing(states):  # type: ignore[type-var]
                    async for state in states:
                        yield server_report(address, state, self._clock.now())
            except DeadlineExceeded:
                continue
            raise Unavailable("The model server ended its state stream.", "STREAM_ENDED")


def server_report(address: str, state: modelserver_pb2.State, now: float) -> ServerReport:
    server = Server(
        member_id=state.member_id,
        address=address,
        incarnation=state.incarnation,
        phase=state.phase,
        max_steps=state.max_steps,
        block_tokens=state.block_tokens,
        total_blocks=state.total_blocks,
        running=state.running_sequences,
        waiting=state.waiting_sequences,
        running_steps=state.running_steps,
        waiting_steps=state.waiting_steps,
        free_blocks=state.free_blocks,
        max_context=state.max_context,
        weight_seq=state.weights.seq,
        seen_at=now,
    )
    return ServerReport(server, Clocks(state.uptime_s, state.busy_s_total))
