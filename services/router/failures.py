"""Every failure as its client is told of it, in one table for HTTP, gRPC and lines of a batch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from libs import errors
from libs.cluster.errors import PASSING, OutcomeUnknown
from libs.objects.errors import AccessDenied, InvalidKey, ReadOnly, StoreFull
from services.router.core.errors import RequestError, error_envelope

INVALID = "invalid_request_error"
SERVER = "server_error"


@dataclass(frozen=True, slots=True)
class Failure:
    """One failed request as its client sees it."""

    status: int
    type: str
    message: str
    param: str | None = None
    code: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)

    def envelope(self) -> dict[str, Any]:
        return error_envelope(self.message, self.type, self.param, self.code)


_STATUS: tuple[tuple[type[errors.ImpalaError], int, str], ...] = (
    # Not a limit or a right of the client's, as their classes would have it.
    (StoreFull, 507, SERVER),
    (ReadOnly, 503, SERVER),
    (AccessDenied, 503, SERVER),
    # No client names an object.
    (InvalidKey, 500, SERVER),
    (errors.InvalidArgument, 400, INVALID),
    (errors.NotFound, 404, INVALID),
    (errors.AlreadyExists, 409, INVALID),
    (errors.FailedPrecondition, 409, INVALID),
    (errors.ResourceExhausted, 429, "rate_limit_error"),
    (errors.Unavailable, 503, SERVER),
    (errors.DeadlineExceeded, 504, SERVER),
    (errors.Aborted, 409, INVALID),
    (errors.PermissionDenied, 403, "permission_error"),
    (errors.Unauthenticated, 401, "authentication_error"),
    (errors.Unimplemented, 501, "not_implemented_error"),
    (errors.Cancelled, 499, "request_cancelled"),
)

# Reasons whose message was not written for a client: a status of the transport, or a handler's
# exception. What they mean is said here.
_FAILED = "The server failed on this request."
_FOREIGN = {
    "INTERNAL": _FAILED,
    "UNKNOWN": _FAILED,
    "UNEXPECTED_ERROR": _FAILED,
    "HANDLER_CANCELLED": _FAILED,
    "INVALID_KEY": _FAILED,
    "UNAVAILABLE": "A server that this request needs cannot be reached now.",
    "CANCELLED": "A server that this request needs went away.",
    "STORE_FULL": "The object store is full: nothing can be stored until room is made there.",
    "READ_ONLY": "The object store cannot be written now.",
    "STORE_UNAVAILABLE": "The object store does not answer now: try again soon.",
    "ACCESS_DENIED": "The object store cannot be used now.",
}

# Why is for the operator's log: it names hosts and settings.
_AWAY = "What this needs of the cluster's state cannot be read or agreed on now; try again soon."
_AWAY_UNKNOWN = (
    "The cluster did not confirm this in time: it may or may not be done. Look, or try again with "
    "the same Idempotency-Key."
)

# A 409 that no retry can mend: the official client would otherwise send it three times.
_NO_RETRY = {"x-should-retry": "false"}


def failure_of(error: BaseException) -> Failure:
    """What a client is told of an error; an unknown one is a 500 without its text."""
    if isinstance(error, RequestError):
        headers = _NO_RETRY if error.status == 409 else {}
        return Failure(error.status, error.type, error.message, error.param, error.code, headers)
    if isinstance(error, PASSING):
        message = _AWAY_UNKNOWN if isinstance(error, OutcomeUnknown) else _AWAY
        return Failure(503, SERVER, message, code="cluster_unavailable", headers=_retry_after(1.0))
    if isinstance(error, errors.ImpalaError):
        return _impala_failure(error)
    if isinstance(error, TimeoutError):
        return Failure(504, SERVER, "The request's time ran out.", code="deadline_exceeded")
    return Failure(500, SERVER, _FAILED, code="internal_error")


def _impala_failure(error: errors.ImpalaError) -> Failure:
    status, type_ = next(
        ((status, type_) for cls, status, type_ in _STATUS if isinstance(error, cls)),
        (500, SERVER),
    )
    headers: dict[str, str] = dict(_NO_RETRY) if status == 409 else {}
    if isinstance(error, errors.RetryLater):
        headers |= _retry_after(error.retry_after_s)
    message = _FOREIGN.get(error.reason, error.message)
    code = "internal_error" if message == _FAILED else error.reason.lower()
    return Failure(status, type_, message, error.field, code, headers)


def _retry_after(seconds: float | None) -> dict[str, str]:
    if seconds is None:
        return {}
    # Whole seconds for everyone, milliseconds for the official client, which prefers them.
    return {
        "retry-after": str(max(1, round(seconds))),
        "retry-after-ms": str(max(0, round(seconds * 1000))),
    }
