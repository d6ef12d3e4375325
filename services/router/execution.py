"""Execute: lines of a run, each through the pipeline as any other request, answered once each.

The leader bounds how many are unanswered, and that bounds memory and concurrency here. A line ends
as its own answer (output), its own fault (error), cancelled, or not its fault: what it needs is not
there (retry), or its server broke (lost), which the leader counts apart. A run has one stream
here: a later one, of a leader that is not older, cuts the one before.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import Any

from impala.router.v1 import router_pb2
from libs import errors
from libs.clock import Clock
from libs.cluster.epochs import Epochs, stale
from libs.objects import ObjectStore, ObjectStoreError
from libs.objects.errors import PASSING
from libs.records import keys
from services.router.call import BatchOrigin, Call, Trace
from services.router.completions import Completions, Reply
from services.router.core.batch_file import RawLine
from services.router.core.batch_line import BatchLine, LineError, LineRules, parse_line
from services.router.core.errors import RequestError
from services.router.core.output_line import reply_line
from services.router.core.ranges import LineAt, Range, coalesce
from services.router.core.responses import Usage
from services.router.domain_errors import NoSuchModel, ServerLost
from services.router.failures import failure_of
from services.router.identity import Maker
from services.router.steps import is_servers_end

log = logging.getLogger(__name__)

READ_RETRY_S, MAX_READ_RETRY_S = 0.5, 10.0
_TRACE_ID, _PARENT_ID, _TOOL = "x-impala-trace-id", "x-impala-parent-trace-id", "x-impala-tool"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOrder:
    """What all lines of one Execute have in common."""

    run_id: str
    epoch: int
    fleet: str
    account: str
    job_id: str
    model: str
    endpoint: str
    input_object: str
    deadline_unix_ms: int
    """0 = none."""
    window: str


class Executor:
    """Makes one `Execution` a stream."""

    def __init__(
        self,
        objects: ObjectStore,
        completions: Completions,
        maker: Maker,
        epochs: Epochs,
        *,
        line_timeout_s: float,
    ) -> None:
        self.objects = objects
        self.completions = completions
        self.maker = maker
        self.line_timeout_s = line_timeout_s
        self._epochs = epochs
        self._of_run: dict[str, Execution] = {}

    async def start(self, order: RunOrder) -> Execution:
        """Raises Aborted for a leader that is none. Use it with `async with`."""
        await self._epochs.check(keys.fleet_election(order.fleet), order.epoch)
        execution = Execution(self, order)
        older = self._of_run.get(order.run_id)
        self._of_run[order.run_id] = execution
        if older is not None:
            older.cut(order.epoch)
        return execution

    def ended(self, execution: Execution) -> None:
        run_id = execution.order.run_id
        if self._of_run.get(run_id) is execution:
            del self._of_run[run_id]


class Execution:
    """Owner of the tasks of one stream: one a line, cancelled on leaving."""

    def __init__(self, executor: Executor, order: RunOrder) -> None:
        self._executor = executor
        self.order = order
        self._clock: Clock = executor.maker.clock
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._reads: set[asyncio.Task[bytes]] = set()
        self._results: asyncio.Queue[router_pb2.LineResult | None] = asyncio.Queue()
        self._cancelled: set[int] = set()
        self._cut: errors.Aborted | None = None

    async def __aenter__(self) -> Execution:
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._executor.ended(self)
        tasks = self._cancel_all()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _cancel_all(self) -> list[asyncio.Task[Any]]:
        tasks = [*self._tasks.values(), *self._reads]
        for task in tasks:
            task.cancel()
        return tasks

    def cut(self, by_epoch: int) -> None:
        """Another stream of the run has begun: `results` raises Aborted, nothing goes on.

        The lines are stopped here and now: the reader of `results` may wait on a peer that is
        paused.
        """
        self._cut = superseded(self.order, by_epoch)
        self._cancel_all()
        self._results.put_nowait(None)

    def hand_out(self, lines: Sequence[LineAt]) -> None:
        """Starts the lines; a line that is under way already is not started twice."""
        if self._cut is not None:
            return
        started = self._clock.now()
        fresh = [line for line in lines if line.line not in self._tasks]
        for part in coalesce(fresh):
            content = asyncio.create_task(self._read(part))
            self._reads.add(content)
            content.add_done_callback(self._reads.discard)
            for line in part.lines:
                work = self._line(line, part, content, started)
                self._tasks[line.line] = asyncio.create_task(work)

    def cancel(self, lines: Sequence[int]) -> None:
        """Lines that are not finished are answered as cancelled."""
        for line in lines:
            task = self._tasks.get(line)
            if task is not None:
                self._cancelled.add(line)
                task.cancel()

    async def finish(self) -> None:
        """Returns when every line has its result."""
        while self._tasks:
            await asyncio.wait(self._tasks.values())

    def close(self) -> None:
        """No more results come: `results` ends after those that are there."""
        self._results.put_nowait(None)

    async def results(self) -> AsyncGenerator[list[router_pb2.LineResult], None]:
        """Results as they come, those that are there together in one list.

        Raises Aborted after a cut.
        """
        while True:
            batch = [await self._results.get()]
            while not self._results.empty():
                batch.append(self._results.get_nowait())
            if self._cut is not None:
                raise self._cut
            found = [result for result in batch if result is not None]
            if found:
                yield found
            if None in batch:
                return

    async def _read(self, part: Range) -> bytes:
        """Waits for a store that is away, as long as a line may take: a line that could not be read
        was not tried, and should not use up its tries."""
        give_up_at = self._clock.now() + self._executor.line_timeout_s
        wait_s = READ_RETRY_S
        while True:
            try:
                return await self._executor.objects.get_range(
                    self.order.input_object, part.start, part.length
                )
            except PASSING as error:
                if self._clock.now() + wait_s > give_up_at:
                    raise
                fields = {"run": self.order.run_id, "why": error.message}
                log.warning("the object store must be asked again", extra=fields)
            await self._clock.sleep(wait_s)
            wait_s = min(MAX_READ_RETRY_S, 2 * wait_s)

    async def _line(
        self, at: LineAt, part: Range, content: asyncio.Task[bytes], started: float
    ) -> None:
        result = router_pb2.LineResult(line=at.line)
        try:
            data = await asyncio.shield(content)
            begin = at.offset - part.start
            raw = RawLine(at.line, at.offset, at.length, data[begin : begin + at.length])
            await self._execute(raw, result)
        except asyncio.CancelledError:
            if at.line not in self._cancelled:
                raise
            result.outcome = router_pb2.LINE_OUTCOME_CANCELLED
        except Exception as error:  # noqa: BLE001  # every line is answered
            if not isinstance(error, ObjectStoreError):
                self._log(at.line, error)
            _set_retry(result, error)
        finally:
            del self._tasks[at.line]
        result.total_s = self._clock.now() - started
        self._results.put_nowait(result)

    async def _execute(self, raw: RawLine, result: router_pb2.LineResult) -> None:
        order = self.order
        rules = LineRules(order.endpoint, order.model, frozenset({order.model}))
        line = parse_line(raw, rules)
        request_id = f"req_{self._executor.maker.token()}"
        if isinstance(line, LineError):
            # The file was validated, so it has changed since; say so on the line.
            error = RequestError(line.message, line.param, line.code)
            _set_reply(result, order, "", request_id, 400, error.envelope())
            return
        result.custom_id = line.custom_id.encode("utf-8", "surrogatepass")
        result.trace_id = trace_of(line).trace_id
        call = self._call(line, request_id)
        try:
            reply = await self._complete(call)
            _set_reply(result, order, line.custom_id, request_id, 200, reply.body)
        except Exception as error:  # noqa: BLE001  # told apart by its class
            self._fail(result, line, call, error)
        else:
            self._executor.completions.count(call, 200)
            _set_usage(result, reply.usage)

    async def _complete(self, call: Call) -> Reply:
        completions = self._executor.completions
        return await completions.complete(await completions.prepare(call))

    def _call(self, line: BatchLine, request_id: str) -> Call:
        order = self.order
        within_s = self._executor.line_timeout_s
        if order.deadline_unix_ms:
            left = order.deadline_unix_ms / 1000 - self._clock.time()
            within_s = min(within_s, max(0.0, left))
        return Call(
            request_id=request_id,
            account=order.account,
            endpoint=order.endpoint,
            body=line.body,
            within_s=within_s,
            window=order.window,
            trace=trace_of(line),
            origin=BatchOrigin(order.run_id, line.line, order.job_id, order.fleet),
            deadline_unix_ms=order.deadline_unix_ms,
        )

    def _fail(
        self, result: router_pb2.LineResult, line: BatchLine, call: Call, error: Exception
    ) -> None:
        failure = failure_of(error)
        self._executor.completions.count(call, failure.status)
        if is_the_lines_fault(error):
            if failure.status == 500:
                self._log(line.line, error)
            _set_reply(
                result,
                self.order,
                line.custom_id,
                call.request_id,
                failure.status,
                failure.envelope(),
            )
            return
        _set_retry(result, error)

    def _log(self, line: int, error: Exception) -> None:
        """A failure of ours: who reads the line's error learns no more than that."""
        fields = {"run": self.order.run_id, "line": line}
        log.error("a line failed", exc_info=error, extra=fields)


def superseded(order: RunOrder, epoch: int) -> errors.Aborted:
    if epoch > order.epoch:
        return stale(order.epoch, epoch)
    return errors.Aborted(f"Another stream of the run {order.run_id} has begun.", "STREAM_REPLACED")


def is_the_lines_fault(error: Exception) -> bool:
    """Whether the line would fail again anywhere; everything else is worth another try.

    A failure that nobody foresaw is held to be the line's: it was the one that met it, and eleven
    more tries would meet it too. What the machine lacks (memory, files, connections) is not.
    """
    if isinstance(error, errors.ImpalaError):
        if isinstance(error, NoSuchModel) or is_servers_end(error):
            return False
        return isinstance(error, _LINES_FAULTS)
    return not isinstance(error, OSError | MemoryError)


_LINES_FAULTS = (
    RequestError,
    errors.InvalidArgument,
    errors.NotFound,
    errors.Internal,
    errors.DataLoss,
    errors.Unimplemented,
)


def trace_of(line: BatchLine) -> Trace:
    """A line has no headers of its own: what it says of its trace is in its `metadata`."""
    metadata = line.body.get("metadata")
    if not isinstance(metadata, dict):
        return Trace()

    def read(name: str) -> str:
        value = metadata.get(name)
        return value[:256] if isinstance(value, str) else ""

    return Trace(read(_TRACE_ID), read(_PARENT_ID), read(_TOOL))


def line_id(run_id: str, line: int) -> str:
    """The same for every try of a line."""
    digest = hashlib.blake2b(f"{run_id}/{line}".encode(), digest_size=12).hexdigest()
    return f"batch_req_{digest}"


def _set_reply(
    result: router_pb2.LineResult,
    order: RunOrder,
    custom_id: str,
    request_id: str,
    status: int,
    body: dict[str, object],
) -> None:
    ok = 200 <= status < 300
    result.outcome = router_pb2.LINE_OUTCOME_OUTPUT if ok else router_pb2.LINE_OUTCOME_ERROR
    name = line_id(order.run_id, result.line)
    result.record = reply_line(name, custom_id, request_id, status, body).rstrip(b"\n")


def _set_retry(result: router_pb2.LineResult, error: Exception) -> None:
    lost = isinstance(error, ServerLost)
    result.outcome = router_pb2.LINE_OUTCOME_LOST if lost else router_pb2.LINE_OUTCOME_RETRY
    # The reason becomes part of the line's error when the leader gives it up.
    result.reason = failure_of(error).message[:500]
    if isinstance(error, errors.RetryLater) and error.retry_after_s is not None:
        result.retry_after_s = error.retry_after_s


def _set_usage(result: router_pb2.LineResult, usage: Usage) -> None:
    result.usage.prompt_tokens = usage.prompt_tokens
    result.usage.cached_tokens = usage.cached_tokens
    result.usage.completion_tokens = usage.completion_tokens
