"""The errors that a caller of Impala can be told about, as one tree.

    StartupError                 a program cannot start; one sentence, an exit code
    ImpalaError                  a request failed; message, machine-readable reason, field
    ├── InvalidArgument          the request can never succeed as written
    ├── NotFound                 the named thing does not exist (or is not the caller's)
    ├── AlreadyExists            the name is taken by something else
    ├── FailedPrecondition       the system's state forbids it until something is changed
    ├── ResourceExhausted        a limit or quota; may be retried after `retry_after_s`
    ├── Unavailable              nobody can serve it now; may be retried after `retry_after_s`
    ├── DeadlineExceeded         the caller's time ran out; the work may or may not be done
    ├── Aborted                  lost a race (compare-and-set, fencing); read again, then retry
    ├── PermissionDenied         known caller, not allowed
    ├── Unauthenticated          unknown caller
    ├── Internal                 an invariant of ours broke
    ├── Unimplemented            the contract has it, this server does not
    ├── Cancelled                the caller gave up
    └── DataLoss                 stored bytes are gone or corrupt

A domain error subclasses the class that says what a caller should do about it and fixes its own
reason; `libs.rpc.status` maps by class, so a subclass needs no entry there.
"""

from __future__ import annotations

import re

_REASON = re.compile(r"[A-Z][A-Z0-9]*(_[A-Z0-9]+)*")


class StartupError(Exception):
    """A program cannot start. The text is one sentence that says what to do; no traceback helps.

    Raise it from configuration and start-up only: `libs.rpc.lifecycle` prints it and exits
    with `exit_code`.
    """

    exit_code = 1


class ImpalaError(Exception):
    """A request failed in a way that its caller should hear about.

    message: one sentence for a person, without secrets.
    reason:  SCREAMING_SNAKE_CASE, stable, for programs; what to match on.
    field:   the request's field at fault, in the words of the request ("messages[2].role"), or
             None when no single field is.
    hints:   more that programs may read, as pairs of a name and an ASCII value; names are such as
             trailing metadata has.
    """

    hints: tuple[tuple[str, str], ...] = ()

    def __init__(self, message: str, reason: str, field: str | None = None) -> None:
        if not _REASON.fullmatch(reason):
            raise ValueError(f"a reason is SCREAMING_SNAKE_CASE, got {reason!r}")
        super().__init__(message)
        self.message = message
        self.reason = reason
        self.field = field

    def __repr__(self) -> str:
        field = f", field={self.field!r}" if self.field is not None else ""
        return f"{type(self).__name__}({self.message!r}, {self.reason}{field})"

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.message, self.reason, self.field), dict(self.__dict__)


class RetryLater(ImpalaError):
    """Base of the two classes that may carry a time to wait.

    retry_after_s: seconds to wait before the next try, >= 0; None when the server cannot tell.
    """

    def __init__(
        self,
        message: str,
        reason: str,
        field: str | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message, reason, field)
        self.retry_after_s = retry_after_s


class InvalidArgument(ImpalaError):
    """The request can never succeed as written; `field` says where."""


class NotFound(ImpalaError):
    """The named thing does not exist, or is not the caller's to see."""


class AlreadyExists(ImpalaError):
    """The name is taken by something else."""


class FailedPrecondition(ImpalaError):
    """The system's state forbids it; a retry alone does not help."""


class ResourceExhausted(RetryLater):
    """A limit, quota or pool is used up."""


class Unavailable(RetryLater):
    """Nobody can serve it now; the same request may succeed later."""


class DeadlineExceeded(ImpalaError):
    """The caller's time ran out; whether the work was done is unknown."""


class Aborted(ImpalaError):
    """Lost a race (compare-and-set, fencing); read again and retry the whole operation."""


class PermissionDenied(ImpalaError):
    """A known caller may not do this."""


class Unauthenticated(ImpalaError):
    """The caller gave no valid identity."""


class Internal(ImpalaError):
    """An invariant of ours broke; a bug."""


class Unimplemented(ImpalaError):
    """The contract has this call, the server does not do it; the message says why."""


class Cancelled(ImpalaError):
    """The caller gave up."""


class DataLoss(ImpalaError):
    """Stored bytes are gone or do not match their checksum."""
