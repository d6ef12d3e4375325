"""What can go wrong with cluster state.

    ClusterError
    ├── ClusterUnavailable      no endpoint answered in time; this call has changed nothing
    ├── OutcomeUnknown          a write was sent and no answer came: it may or may not be applied
    ├── PermissionRefused       wrong user, password, certificate or role
    ├── RequestRefused          etcd refused the request itself (too large, store full, ...)
    │   └── Compacted           the revision asked for is no longer kept
    ├── LeaseLost               the lease is gone: its keys are, or soon will be, deleted
    ├── CompareFailed           a condition of the write did not hold; nothing was changed
    │   ├── GuardFailed         the guard did not hold: the writer's leadership has ended
    │   ├── RecordExists        create of an id that exists
    │   └── RecordMissing       update, delete or cursor of an id that does not exist
    └── RecordUnreadable        the stored bytes are no record that this version can read

`reason` is for machines and stable; the text is one sentence for people.
"""

from __future__ import annotations

from typing import ClassVar


class ClusterError(Exception):
    reason: ClassVar[str] = "cluster_error"


class ClusterUnavailable(ClusterError):
    """Safe to retry: nothing was changed."""

    reason = "cluster_unavailable"


class OutcomeUnknown(ClusterError):
    """Not safe to retry blindly: read first, or repeat under a compare that the write breaks."""

    reason = "outcome_unknown"


class PermissionRefused(ClusterError):
    reason = "permission_refused"


class RequestRefused(ClusterError):
    reason = "request_refused"


class Compacted(RequestRefused):
    reason = "compacted"


class LeaseLost(ClusterError):
    reason = "lease_lost"


class CompareFailed(ClusterError):
    reason = "compare_failed"


class GuardFailed(CompareFailed):
    reason = "guard_failed"


class RecordExists(CompareFailed):
    reason = "record_exists"


class RecordMissing(CompareFailed):
    reason = "record_missing"


class RecordUnreadable(ClusterError):
    reason = "record_unreadable"
