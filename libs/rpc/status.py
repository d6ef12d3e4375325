"""The one table between the error tree and gRPC statuses, in both directions.

A failure travels as a status code, its sentence, and trailing metadata, each only when it applies:

    impala-reason   SCREAMING_SNAKE_CASE
    impala-field    the request's field at fault, percent-encoded UTF-8
    retry-after-ms  whole milliseconds, rounded up

A server that has taken work on which a call then waits may say so at once by the initial metadata
`ACCEPTED`; where the connection breaks later, the caller knows that the work may have begun.

and the error's own hints, as they are.

Classes map with their subclasses: a domain error needs no row. What the wire cannot carry (lone
surrogates, texts longer than a header may be) is replaced or cut, never a failure of its own.
"""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import Iterable
from typing import Any, NoReturn, cast
from urllib.parse import quote, unquote

import grpc

from libs import errors
from libs.errors import ImpalaError, RetryLater
from libs.rpc.unreachable import unreachable

REASON_KEY = "impala-reason"
FIELD_KEY = "impala-field"
RETRY_AFTER_KEY = "retry-after-ms"
ACCEPTED = (("impala-accepted", "1"),)

_STATUS_BY_CLASS: dict[type[ImpalaError], grpc.StatusCode] = {
    errors.InvalidArgument: grpc.StatusCode.INVALID_ARGUMENT,
    errors.NotFound: grpc.StatusCode.NOT_FOUND,
    errors.AlreadyExists: grpc.StatusCode.ALREADY_EXISTS,
    errors.FailedPrecondition: grpc.StatusCode.FAILED_PRECONDITION,
    errors.ResourceExhausted: grpc.StatusCode.RESOURCE_EXHAUSTED,
    errors.Unavailable: grpc.StatusCode.UNAVAILABLE,
    errors.DeadlineExceeded: grpc.StatusCode.DEADLINE_EXCEEDED,
    errors.Aborted: grpc.StatusCode.ABORTED,
    errors.PermissionDenied: grpc.StatusCode.PERMISSION_DENIED,
    errors.Unauthenticated: grpc.StatusCode.UNAUTHENTICATED,
    errors.Internal: grpc.StatusCode.INTERNAL,
    errors.Unimplemented: grpc.StatusCode.UNIMPLEMENTED,
    errors.Cancelled: grpc.StatusCode.CANCELLED,
    errors.DataLoss: grpc.StatusCode.DATA_LOSS,
}
_CLASS_BY_STATUS: dict[grpc.StatusCode, type[ImpalaError]] = {
    **{code: cls for cls, code in _STATUS_BY_CLASS.items()},
    # Statuses that no Impala server sends, but a proxy or another server may.
    grpc.StatusCode.OUT_OF_RANGE: errors.InvalidArgument,
    grpc.StatusCode.UNKNOWN: errors.Internal,
}

# gRPC refuses metadata beyond 8 KiB, the status's text included, and then the caller would see a
# broken stream instead of the error. Bounds are of the percent-encoded text, in bytes.
_MAX_MESSAGE = 4096
_MAX_FIELD = 1024
_REASON = re.compile(r"[A-Z][A-Z0-9]*(_[A-Z0-9]+)*")


def status_of(error: ImpalaError) -> grpc.StatusCode:
    """The status of an error's nearest class in the table; a class outside it is a bug of ours."""
    for cls in type(error).__mro__:
        if cls in _STATUS_BY_CLASS:
            return _STATUS_BY_CLASS[cls]
    return grpc.StatusCode.INTERNAL


def trailers_of(error: ImpalaError) -> tuple[tuple[str, str], ...]:
    """The trailing metadata that carries what the status and its text do not."""
    trailers = [(REASON_KEY, error.reason)]
    if error.field is not None:
        trailers.append((FIELD_KEY, quote(_cut(error.field, _MAX_FIELD), safe="[]./_-$ ")))
    if isinstance(error, RetryLater) and error.retry_after_s is not None:
        milliseconds = math.ceil(max(0.0, error.retry_after_s) * 1000)
        trailers.append((RETRY_AFTER_KEY, str(milliseconds)))
    return (*trailers, *error.hints)


def error_of(failure: Exception) -> ImpalaError:
    """What to tell the caller about any exception that a handler let out."""
    if isinstance(failure, ImpalaError):
        return failure
    if isinstance(failure, grpc.aio.AioRpcError):
        return from_rpc_error(failure)
    if isinstance(failure, ExceptionGroup) and len(failure.exceptions) == 1:
        return error_of(failure.exceptions[0])
    if isinstance(failure, asyncio.TimeoutError):
        return errors.DeadlineExceeded("A step inside the server took too long.", "INNER_TIMEOUT")
    return errors.Internal(
        f"The server failed with an unexpected {type(failure).__name__}; its log has the details.",
        "UNEXPECTED_ERROR",
    )


async def abort(context: grpc.aio.ServicerContext[Any, Any], error: ImpalaError) -> NoReturn:
    """End the call of `context` with `error`. Raises gRPC's AbortError, which must pass."""
    await context.abort(status_of(error), _cut(error.message, _MAX_MESSAGE), trailers_of(error))


def from_rpc_error(failure: grpc.aio.AioRpcError) -> ImpalaError:
    """The error that the server raised, or the nearest class for a status without our metadata."""
    trailers = dict(cast("Iterable[tuple[str, str | bytes]]", failure.trailing_metadata() or ()))
    cls = _CLASS_BY_STATUS.get(failure.code(), errors.Internal)
    reason = str(trailers.get(REASON_KEY, ""))
    if not _REASON.fullmatch(reason):
        reason = failure.code().name
    field = trailers.get(FIELD_KEY)
    error = cls(
        _told(failure),
        reason,
        unquote(str(field)) if field is not None else None,
    )
    after = str(trailers.get(RETRY_AFTER_KEY, ""))
    if isinstance(error, RetryLater) and after.isdecimal():
        error.retry_after_s = int(after) / 1000
    return error


def _told(failure: grpc.aio.AioRpcError) -> str:
    details = failure.details() or failure.code().name
    if failure.code() is not grpc.StatusCode.UNAVAILABLE:
        return details
    found = unreachable(details)
    return f"{found.peer} cannot be reached: {found.why}." if found else details


def was_cut(error: ImpalaError) -> bool:
    """Whether the transport ended a call that was under way: it gives these statuses, without a
    reason; no server of ours does."""
    cut = isinstance(error, errors.Internal | errors.Cancelled)
    return cut and error.reason in ("INTERNAL", "CANCELLED")


def was_accepted(error: ImpalaError) -> bool:
    """Whether the server had said `ACCEPTED` in the call that ended with `error`."""
    failure = error.__cause__
    if not isinstance(failure, grpc.aio.AioRpcError):
        return False
    return ACCEPTED[0] in tuple(failure.initial_metadata() or ())


def _cut(text: str, limit: int) -> str:
    """`text` without lone surrogates, cut so that its percent-encoding fits in `limit` bytes."""
    text = text.encode("utf-8", "replace").decode()
    if len(quote(text, safe=" ")) <= limit:
        return text
    room = limit - len(quote("..."))
    kept = 0
    for index, char in enumerate(text):
        kept += len(quote(char, safe=" "))
        if kept > room:
            return text[:index] + "..."
    return text
