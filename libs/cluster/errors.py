"""What can go wrong with cluster state. Each class says, by its base in libs.errors, what a caller
should do about it.

    ClusterError
    ├── ClusterUnavailable  (Unavailable)         no endpoint answered; nothing was changed
    ├── OutcomeUnknown      (DeadlineExceeded)    a write was sent and no answer came
    │   └── StoreFull                             etcd's quota is used up: it takes no writes
    ├── PermissionRefused   (PermissionDenied)    wrong user, password, certificate or role
    ├── RequestRefused      (FailedPrecondition)  etcd refused it: too large, malformed, ...
    │   └── Compacted                             the revision asked for is no longer kept
    ├── LeaseLost           (Aborted)             its keys are, or soon will be, deleted
    ├── CompareFailed       (Aborted)             a condition did not hold; nothing was changed
    │   └── GuardFailed                           the writer's leadership has ended
    ├── RecordExists        (AlreadyExists)       create of an id that is taken
    ├── BadAccountName      (InvalidArgument)     no new account may be called that
    ├── RecordMissing       (NotFound)            update or cursor of an id that is not there
    └── RecordUnreadable    (DataLoss)            no record that this version can read

PASSING are those that end without the caller's doing: etcd comes back, or an operator frees space
or gives access. Who must go on waits for that (patience.py); who has a client says "come back".
"""

from __future__ import annotations

from typing import ClassVar

from libs.errors import (
    Aborted,
    AlreadyExists,
    DataLoss,
    DeadlineExceeded,
    FailedPrecondition,
    ImpalaError,
    InvalidArgument,
    NotFound,
    PermissionDenied,
    Unavailable,
)


class ClusterError(ImpalaError):
    REASON: ClassVar[str] = "CLUSTER_ERROR"

    def __init__(self, message: str) -> None:
        super().__init__(message, self.REASON)

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.message,), dict(self.__dict__)


class ClusterUnavailable(ClusterError, Unavailable):
    """Safe to retry: nothing was changed."""

    REASON = "CLUSTER_UNAVAILABLE"


class OutcomeUnknown(ClusterError, DeadlineExceeded):
    """It may or may not be applied, now or later. Not safe to retry blindly: read first, or repeat
    under a compare that the write itself breaks."""

    REASON = "OUTCOME_UNKNOWN"


class StoreFull(OutcomeUnknown):
    """The write that filled the store is applied and answered so; later ones are not applied."""

    REASON = "CLUSTER_STORE_FULL"


class PermissionRefused(ClusterError, PermissionDenied):
    REASON = "CLUSTER_PERMISSION_REFUSED"


class RequestRefused(ClusterError, FailedPrecondition):
    REASON = "CLUSTER_REQUEST_REFUSED"


class Compacted(RequestRefused):
    REASON = "COMPACTED"


class LeaseLost(ClusterError, Aborted):
    REASON = "LEASE_LOST"


class CompareFailed(ClusterError, Aborted):
    REASON = "COMPARE_FAILED"


class GuardFailed(CompareFailed):
    REASON = "GUARD_FAILED"


class RecordExists(ClusterError, AlreadyExists):
    REASON = "RECORD_EXISTS"


class BadAccountName(ClusterError, InvalidArgument):
    REASON = "BAD_ACCOUNT_NAME"


class RecordMissing(ClusterError, NotFound):
    REASON = "RECORD_MISSING"


class RecordUnreadable(ClusterError, DataLoss):
    REASON = "RECORD_UNREADABLE"


PASSING = (ClusterUnavailable, OutcomeUnknown, PermissionRefused)
