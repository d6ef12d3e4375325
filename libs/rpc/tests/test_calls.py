"""Calls end to end: errors keep their meaning, deadlines and disconnects reach the handler."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from libs import errors
from libs.errors import (
    Aborted,
    DeadlineExceeded,
    ImpalaError,
    Internal,
    InvalidArgument,
    NotFound,
    ResourceExhausted,
    Unavailable,
    Unimplemented,
)
from libs.obs import Metrics
from libs.rpc import (
    ACCEPTED,
    call,
    connect,
    from_rpc_error,
    remaining,
    stream,
    upload,
    was_accepted,
)
from libs.rpc.tests.frame_proxy import frame_proxy
from libs.rpc.tests.raw import SERVICE, Stuck, echo, raw_service, streaming, unary, uploading
from libs.testing.rpc import connected, free_port, serving


def raising(failure: BaseException) -> Any:
    async def handler(request: bytes, _: Any) -> bytes:
        raise failure

    return handler


async def outcome(failure: BaseException, timeout_s: float = 5.0) -> ImpalaError:
    """What a client is told when a handler raises `failure`."""
    service = raw_service(unary={"Fail": raising(failure)})
    async with serving(service) as rpc, connected(rpc) as channel:
        with pytest.raises(ImpalaError) as caught:
            await call(unary(channel, "Fail"), b"", timeout_s=timeout_s)
    return caught.value


CLASSES = sorted(
    name
    for name, cls in vars(errors).items()
    if isinstance(cls, type)
    and issubclass(cls, ImpalaError)
    and cls not in (ImpalaError, errors.RetryLater)
)


async def collect(messages: AsyncIterator[bytes], into: list[bytes]) -> None:
    async for message in messages:
        into.append(message)


def _forget_cancellation() -> None:
    """What a handler decided before its client left is told too late."""
    task = asyncio.current_task()
    assert task is not None
    task.uncancel()


class SegmentLost(errors.DataLoss):
    """A domain error of some service, without a row in the table."""


class TestErrors:
    @pytest.mark.parametrize("name", CLASSES)
    async def test_every_class_arrives_as_itself(self, name: str) -> None:
        told = await outcome(
            getattr(errors, name)("A sentence.", "SOME_REASON", "messages[2].role")
        )
        assert type(told).__name__ == name
        assert (told.message, told.reason, told.field) == (
            "A sentence.",
            "SOME_REASON",
            "messages[2].role",
        )

    async def test_a_domain_error_arrives_as_its_class(self) -> None:
        told = await outcome(SegmentLost("Gone.", "SEGMENT_LOST"))
        assert type(told) is errors.DataLoss
        assert (told.reason, told.field) == ("SEGMENT_LOST", None)

    async def test_a_time_to_retry_after_survives(self) -> None:
        told = await outcome(ResourceExhausted("Full.", "POOL_FULL", retry_after_s=1.25))
        assert isinstance(told, ResourceExhausted)
        assert told.retry_after_s == 1.25

    async def test_hints_are_trailing_metadata(self) -> None:
        error = Aborted("Lost.", "LOST_RACE")
        error.hints = (("impala-winner", "10.0.0.1:7071"),)
        service = raw_service(unary={"Fail": raising(error)})
        async with serving(service) as rpc, connected(rpc) as channel:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await unary(channel, "Fail")(b"")
        assert ("impala-winner", "10.0.0.1:7071") in tuple(caught.value.trailing_metadata() or ())

    @pytest.mark.parametrize("field", ["тема.поле", "a b/c%d", "\n\r\x00", "x" * 5000, "\ud800"])
    async def test_any_field_name_a_client_can_write_survives_or_is_cut(self, field: str) -> None:
        told = await outcome(InvalidArgument("Bad.", "BAD", field))
        assert told.field is not None
        clean = field.encode("utf-8", "replace").decode()
        assert told.field == clean or (told.field.endswith("...") and clean.startswith("xxx"))

    @pytest.mark.parametrize("text", ["naïve ✓\nline", "\ud800 lone", "✓" * 20_000, "y" * 100_000])
    async def test_any_text_arrives_as_the_error_it_is(self, text: str) -> None:
        told = await outcome(InvalidArgument(text, "BAD"))
        assert isinstance(told, InvalidArgument)
        assert told.message[:5] == text.encode("utf-8", "replace").decode()[:5]
        assert told.message.endswith(text[-3:].encode("utf-8", "replace").decode()) or (
            told.message.endswith("...")
        )

    async def test_an_unexpected_exception_is_internal_and_keeps_its_secrets(self) -> None:
        told = await outcome(RuntimeError("password=hunter2"))
        assert isinstance(told, Internal)
        assert told.reason == "UNEXPECTED_ERROR"
        assert "RuntimeError" in told.message
        assert "hunter2" not in told.message

    async def test_an_inner_timeout_is_a_deadline(self) -> None:
        assert (await outcome(TimeoutError())).reason == "INNER_TIMEOUT"

    async def test_an_error_from_inside_a_task_group_arrives_as_itself(self) -> None:
        told = await outcome(ExceptionGroup("group", [Aborted("Lost.", "LOST_RACE")]))
        assert isinstance(told, Aborted)

    async def test_a_status_of_another_service_passes_through(self) -> None:
        async def relay(request: bytes, context: Any) -> bytes:
            return await unary(inner, "Fail")(request)  # type: ignore[no-any-return]

        service = raw_service(unary={"Fail": raising(NotFound("None.", "NO_SUCH_JOB", "job_id"))})
        async with serving(service) as rpc, connected(rpc) as inner:
            outer = raw_service(unary={"Relay": relay})
            async with serving(outer) as front, connected(front) as channel:
                with pytest.raises(NotFound) as caught:
                    await call(unary(channel, "Relay"), b"", timeout_s=5)
        assert (caught.value.reason, caught.value.field) == ("NO_SUCH_JOB", "job_id")

    async def test_an_unknown_method_is_unimplemented_and_makes_no_metric(self) -> None:
        metrics = Metrics()
        async with serving(raw_service(), metrics=metrics) as rpc, connected(rpc) as channel:
            with pytest.raises(Unimplemented):
                await call(unary(channel, "Nothing"), b"", timeout_s=5)
        assert "Nothing" not in metrics.text()

    async def test_nobody_there_is_unavailable(self) -> None:
        async with connect(f"127.0.0.1:{free_port()}") as channel:
            with pytest.raises(Unavailable):
                await call(unary(channel, "Echo"), b"", timeout_s=5)

    async def test_an_error_after_some_answers_arrives_after_them(self) -> None:
        async def two_then_fail(request: bytes, _: Any) -> AsyncIterator[bytes]:
            yield b"1"
            yield b"2"
            raise Aborted("Fenced.", "FENCED")

        got: list[bytes] = []
        service = raw_service(streaming={"Two": two_then_fail})
        async with serving(service) as rpc, connected(rpc) as channel:
            with pytest.raises(Aborted):
                await collect(stream(streaming(channel, "Two"), b"", timeout_s=5), got)
        assert got == [b"1", b"2"]


class TestCancellation:
    async def test_a_cancelled_error_from_inside_is_a_status_not_a_hang(self) -> None:
        """grpc.aio alone would leave the client waiting until its deadline."""
        told = await outcome(asyncio.CancelledError(), timeout_s=60)
        assert isinstance(told, Internal)
        assert told.reason == "HANDLER_CANCELLED"

    async def test_a_cancelled_sub_task_in_a_stream_is_a_status_too(self) -> None:
        async def broken(request: bytes, _: Any) -> AsyncIterator[bytes]:
            yield b"1"
            inner = asyncio.create_task(asyncio.Event().wait())
            inner.cancel()
            await inner

        service = raw_service(streaming={"Broken": broken})
        async with serving(service) as rpc, connected(rpc) as channel:
            with pytest.raises(Internal):
                await collect(stream(streaming(channel, "Broken"), b"", timeout_s=60), [])

    async def test_a_client_that_leaves_cancels_the_handler(self) -> None:
        stuck = Stuck()
        service = raw_service(unary={"Stuck": stuck.unary})
        async with serving(service) as rpc, connected(rpc) as channel:
            task = asyncio.create_task(call(unary(channel, "Stuck"), b"", timeout_s=60))
            await stuck.started.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            async with asyncio.timeout(10):
                await stuck.cancelled.wait()

    async def test_a_client_that_stops_reading_a_stream_closes_its_generator(self) -> None:
        stuck = Stuck()
        service = raw_service(streaming={"Endless": stuck.endless})
        async with serving(service) as rpc, connected(rpc) as channel:
            messages = stream(streaming(channel, "Endless"), b"", timeout_s=60)
            async with contextlib.aclosing(messages):  # type: ignore[type-var]
                async for _ in messages:
                    break
            async with asyncio.timeout(10):
                await stuck.cancelled.wait()

    @pytest.mark.parametrize("kind", ["write", "abort"])
    async def test_what_cannot_be_told_to_a_client_that_is_gone_is_no_failure_here(
        self, kind: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        metrics = Metrics()
        gone, entered = asyncio.Event(), asyncio.Event()

        async def late(request: bytes, _: Any) -> AsyncIterator[bytes]:
            entered.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                _forget_cancellation()
            gone.set()
            if kind == "abort":
                raise Aborted("Lost.", "LOST")
            yield b"too late"

        service = raw_service(streaming={"Late": late})
        async with serving(service, metrics=metrics) as rpc, connected(rpc) as channel:
            running = streaming(channel, "Late")(b"")
            await entered.wait()
            running.cancel()
            await gone.wait()
        assert [record for record in caplog.records if record.levelname == "ERROR"] == []
        assert f'method="/{SERVICE}/Late"}} 0.0' in metrics.text()  # none runs any more

    async def test_a_channel_closed_under_a_call_is_an_error_not_a_cancellation(self) -> None:
        stuck = Stuck()
        async with serving(raw_service(unary={"Stuck": stuck.unary})) as rpc:
            channel = connect(rpc.address)
            task = asyncio.create_task(call(unary(channel, "Stuck"), b"", timeout_s=60))
            await stuck.started.wait()
            await channel.close(None)
            with pytest.raises(ImpalaError):
                await task


class TestDeadlines:
    async def test_a_deadline_reaches_the_handler_and_cancels_it(self) -> None:
        stuck = Stuck()
        async with (
            serving(raw_service(unary={"Stuck": stuck.unary})) as rpc,
            connected(rpc) as channel,
        ):
            with pytest.raises(DeadlineExceeded):
                await call(unary(channel, "Stuck"), b"", timeout_s=0.2)
            async with asyncio.timeout(10):
                await stuck.cancelled.wait()

    async def test_a_handler_passes_on_what_its_caller_has_left(self) -> None:
        seen: list[float] = []

        async def ask(request: bytes, context: Any) -> bytes:
            seen.append(remaining(context, 30.0))
            return b""

        service = raw_service(unary={"Ask": ask})
        async with serving(service) as rpc, connected(rpc) as channel:
            await call(unary(channel, "Ask"), b"", timeout_s=7)
            await call(unary(channel, "Ask"), b"", timeout_s=700)
            await unary(channel, "Ask")(b"")
        assert 0 < seen[0] <= 7.1
        assert seen[1:] == [30.0, 30.0]

    def test_nothing_left_is_an_error_before_any_call(self) -> None:
        class Late:
            def time_remaining(self) -> float:
                return 0.0

        with pytest.raises(DeadlineExceeded):
            remaining(Late(), 5.0)


async def test_an_upload_is_answered_once() -> None:
    async def count(requests: AsyncIterator[bytes], _: Any) -> bytes:
        return str([len(request) async for request in requests]).encode()

    async def chunks() -> AsyncIterator[bytes]:
        for size in (1, 2, 3):
            yield bytes(size)

    service = raw_service(uploading={"Count": count})
    async with serving(service) as rpc, connected(rpc) as channel:
        assert await upload(uploading(channel, "Count"), chunks(), timeout_s=5) == b"[1, 2, 3]"


async def test_calls_are_counted_by_method_and_status() -> None:
    metrics, stuck = Metrics(), Stuck()
    service = raw_service(
        unary={"Echo": echo, "Fail": raising(NotFound("No.", "NONE")), "Stuck": stuck.unary}
    )
    async with serving(service, metrics=metrics) as rpc, connected(rpc) as channel:
        await call(unary(channel, "Echo"), b"", timeout_s=5)
        with pytest.raises(NotFound):
            await call(unary(channel, "Fail"), b"", timeout_s=5)
        with pytest.raises(DeadlineExceeded):
            await call(unary(channel, "Stuck"), b"", timeout_s=0.1)
        await rpc.drain(10)
    value = metrics.registry.get_sample_value
    for name, code in [("Echo", "OK"), ("Fail", "NOT_FOUND"), ("Stuck", "DEADLINE_EXCEEDED")]:
        method = {"method": f"/{SERVICE}/{name}"}
        assert value("impala_rpc_server_calls_total", method | {"code": code}) == 1
        assert value("impala_rpc_server_seconds_count", method) == 1
        assert value("impala_rpc_server_running", method) == 0


class TestAccepted:
    """Whether the server had taken the work that a broken call was about."""

    @staticmethod
    async def broken(call: Any) -> ImpalaError:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call.read()
        error = from_rpc_error(caught.value)
        error.__cause__ = caught.value
        return error

    async def test_a_connection_that_breaks_afterwards(self) -> None:
        async def accept(_: bytes, context: Any) -> AsyncIterator[bytes]:
            await context.send_initial_metadata(ACCEPTED)
            await asyncio.get_running_loop().create_future()
            yield b""

        async with contextlib.AsyncExitStack() as stack:
            rpc = await stack.enter_async_context(serving(raw_service(streaming={"Take": accept})))
            async with frame_proxy(rpc.port) as proxy:
                channel = await stack.enter_async_context(connect(f"127.0.0.1:{proxy.port}"))
                taken = streaming(channel, "Take")(b"")
                await taken.initial_metadata()
            error = await self.broken(taken)
        assert isinstance(error, Unavailable), error
        assert was_accepted(error)

    async def test_a_server_that_is_not_there(self) -> None:
        async with connect(f"127.0.0.1:{free_port()}") as channel:
            messages = stream(streaming(channel, "Take"), b"", timeout_s=5)
            with pytest.raises(Unavailable) as caught:
                await anext(aiter(messages))
        assert not was_accepted(caught.value)
