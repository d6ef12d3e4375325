"""Sends step reports to the fleet's leader until it has acknowledged them."""

import asyncio
import contextlib
import logging
from collections.abc import Callable

import grpc

from impala.common.v1 import common_pb2
from impala.modelserver.v1 import modelserver_pb2
from impala.scheduler.v1 import scheduler_pb2, scheduler_pb2_grpc
from libs.clock import Clock
from libs.cluster.client import EtcdClient
from libs.cluster.election import Election, Leader
from libs.cluster.errors import ClusterUnavailable
from libs.cluster.members import Members
from libs.errors import ImpalaError
from libs.records import keys
from libs.rpc import ClientTls, call, connect
from services.modelserver.ports import FinishedStep, ReportSource

log = logging.getLogger(__name__)

_BATCH = 256
_TIMEOUT_S = 5.0
_RETRY_S = 0.5
_GATHER_S = 0.05

_FINISH = {
    "stop": common_pb2.FINISH_REASON_STOP,
    "length": common_pb2.FINISH_REASON_LENGTH,
    "abort": common_pb2.FINISH_REASON_ABORTED,
    "error": common_pb2.FINISH_REASON_ERROR,
}


class ReportSender:
    """One task follows the leader, one sends; a report leaves the log only when acknowledged."""

    def __init__(
        self,
        source: ReportSource,
        client: EtcdClient,
        schedulers: Members,
        *,
        fleet: str,
        member_id: str,
        incarnation: str,
        clock: Clock,
        tls: ClientTls | None = None,
    ) -> None:
        self._source = source
        self._election = Election(client, keys.fleet_election(fleet), member_id)
        self._schedulers = schedulers
        self._member_id = member_id
        self._incarnation = incarnation
        self._clock = clock
        self._connect: Callable[[str], grpc.aio.Channel] = lambda address: connect(address, tls)
        self._leader: Leader | None = None
        self._has_leader = asyncio.Event()
        self._channel: tuple[str, grpc.aio.Channel] | None = None

    async def run(self) -> None:
        """Until cancelled."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._follow_leader())
                group.create_task(self._send_all())
        finally:
            if self._channel is not None:
                await self._channel[1].close(None)

    async def flush(self, at_most_s: float) -> None:
        """Returns when everything is acknowledged, or after so many seconds."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(at_most_s):
                while len(self._source.reports):
                    await self._clock.sleep(_GATHER_S)

    async def _follow_leader(self) -> None:
        while True:
            try:
                async for leader in self._election.observe():
                    self._leader = leader
                    if leader is None:
                        self._has_leader.clear()
                    else:
                        self._has_leader.set()
            except ClusterUnavailable as error:
                log.warning("cannot follow the fleet's leader: %s", error)
                await self._clock.sleep(_RETRY_S)

    async def _send_all(self) -> None:
        while True:
            await self._source.reported.wait()
            await self._clock.sleep(_GATHER_S)  # gathers what ends in the same moment
            await self._has_leader.wait()
            self._source.reported.clear()
            while len(self._source.reports):
                if not await self._send_some():
                    await self._clock.sleep(_RETRY_S)
                    await self._has_leader.wait()

    async def _send_some(self) -> bool:
        stub = await self._stub()
        if stub is None:
            return False
        head = self._source.reports.head(_BATCH)
        request = scheduler_pb2.ReportRequest(
            member_id=self._member_id,
            incarnation=self._incarnation,
            steps=[step_report(sequence, report) for sequence, report in head],
            busy_s_total=self._source.busy_s,
            uptime_s=self._source.uptime_s,
        )
        try:
            answer = await call(stub.Report, request, timeout_s=_TIMEOUT_S)
        except ImpalaError as error:
            log.warning("step reports wait: %s", error)
            return False
        return self._source.reports.acknowledge(answer.acknowledged) > 0

    async def _stub(self) -> "scheduler_pb2_grpc.SchedulerAsyncStub | None":
        leader = self._leader
        member = self._schedulers.current().get(leader.candidate_id) if leader else None
        if member is None:
            return None
        address = str(member.info["address"])
        if self._channel is None or self._channel[0] != address:
            if self._channel is not None:
                await self._channel[1].close(None)
            self._channel = (address, self._connect(address))
        return scheduler_pb2_grpc.SchedulerStub(self._channel[1])


def step_report(sequence: int, step: FinishedStep) -> scheduler_pb2.StepReport:
    """A finished step in the words of the contract."""
    return scheduler_pb2.StepReport(
        sequence=sequence,
        step_id=step.step_id,
        grant_id=step.grant_id,
        self_placed=step.self_placed,
        owner=modelserver_pb2.Owner(
            account=step.account, job_id=step.job_id, run_id=step.run_id, line=step.line
        ),
        trace_id=step.trace_id,
        usage=common_pb2.Usage(
            prompt_tokens=step.prompt_tokens,
            cached_tokens=step.cached_tokens,
            completion_tokens=step.completion_tokens,
        ),
        finish_reason=_FINISH.get(step.finish_reason, common_pb2.FINISH_REASON_UNSPECIFIED),
        prompt_hashes=step.prompt_hashes,
        output_hashes=step.output_hashes,
        engine_s=step.engine_s,
        queue_s=step.queue_s,
        first_token_s=step.first_token_s,
        total_s=step.total_s,
        finished_unix_ms=step.finished_unix_ms,
        weight_seq=step.weight_seq,
    )
