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
from libs.cluster.errors import PASSING
from libs.cluster.members import Members
from libs.errors import ImpalaError
from libs.records import keys
from libs.rpc import ClientTls, call, connect
from services.modelserver.ports import FinishedStep, ReportSource

log = logging.getLogger(__name__)

_BATCH = 256
_TIMEOUT_S = 5.0
_RETRY_S = 0.5
_GATHER_S = 0.01
_ASK_EVERY_S = 0.1

_FINISH = {
    "stop": common_pb2.FINISH_REASON_STOP,
    "length": common_pb2.FINISH_REASON_LENGTH,
    "abort": common_pb2.FINISH_REASON_ABORTED,
    "error": common_pb2.FINISH_REASON_ERROR,
}


class ReportSender:
    """One task follows the leader, one sends. A leader books a report at once, so that the step's
    place is free, and acknowledges it when the book is written: only then it leaves the log. Until
    then the sender asks again, and another leader (or the same one, elected anew) gets the rest
    from its start."""

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
        self._sent = 0
        """Sequence up to which the leader of `_epoch` has them."""
        self._epoch = 0

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
            except PASSING as error:
                log.warning("cannot follow the fleet's leader: %s", error)
                await self._clock.sleep(_RETRY_S)

    async def _send_all(self) -> None:
        while True:
            await self._something_to_send()
            await self._clock.sleep(_GATHER_S)  # gathers what ends in the same moment
            await self._has_leader.wait()
            self._source.reported.clear()
            if not await self._send_some():
                await self._clock.sleep(_RETRY_S)
            if self._sent < self._source.reports.last:
                self._source.reported.set()

    async def _something_to_send(self) -> None:
        """Returns when a step has ended, or when it is time to ask for what was acknowledged."""
        patience = _ASK_EVERY_S if len(self._source.reports) else None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(patience):
                await self._source.reported.wait()

    async def _send_some(self) -> bool:
        stub = await self._stub()
        if stub is None:
            return False
        reports = self._source.reports
        some = reports.after(self._sent, _BATCH)
        request = scheduler_pb2.ReportRequest(
            member_id=self._member_id,
            incarnation=self._incarnation,
            acknowledged=reports.acknowledged,
            steps=[step_report(sequence, report) for sequence, report in some],
            busy_s_total=self._source.busy_s,
            uptime_s=self._source.uptime_s,
        )
        try:
            answer = await call(stub.Report, request, timeout_s=_TIMEOUT_S)
        except ImpalaError as error:
            log.warning("step reports wait: %s", error)
            self._sent = reports.acknowledged
            return False
        reports.acknowledge(answer.acknowledged)
        if answer.epoch != self._epoch:
            # It knows none of those that went to the one before; they were before `some`.
            self._epoch, self._sent = answer.epoch, reports.acknowledged
        elif some:
            self._sent = some[-1][0]
        return True

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
