"""What a failed RPC to etcd means for the request that it carried.

Servers answer some refusals before anything is proposed to the cluster: those requests are
certainly not applied and may be sent again. A lost connection or a passed deadline says nothing:
the request may already be in the log, or get there later.
"""

from __future__ import annotations

from enum import Enum

from grpc import StatusCode

from libs.cluster.errors import (
    ClusterError,
    Compacted,
    LeaseLost,
    PermissionRefused,
    RequestRefused,
    StoreFull,
)


class Fate(Enum):
    NOT_APPLIED = "refused before it was proposed: may be sent again"
    STALE_TOKEN = "not applied: authenticate anew, then send again"
    UNANSWERED = "may be applied, now or later"


_UNANSWERED = {
    StatusCode.UNAVAILABLE,
    StatusCode.DEADLINE_EXCEEDED,
    StatusCode.CANCELLED,
    StatusCode.UNKNOWN,
    StatusCode.INTERNAL,
    StatusCode.ABORTED,
    StatusCode.DATA_LOSS,
}
_NOT_APPLIED = ("etcdserver: no leader", "etcdserver: too many requests")
_STALE_TOKEN = ("invalid auth token", "revision of auth store is old")
_FULL = "database space exceeded"
_NO_ACCESS = ("permission denied", "authentication failed", "user name is empty")


def fate_of(code: StatusCode, details: str) -> Fate | ClusterError:
    """The fate of the request, or the error that is its final answer."""
    if any(text in details for text in _NOT_APPLIED):
        return Fate.NOT_APPLIED
    if code is StatusCode.UNAUTHENTICATED or any(text in details for text in _STALE_TOKEN):
        return Fate.STALE_TOKEN
    if code is StatusCode.PERMISSION_DENIED or any(text in details for text in _NO_ACCESS):
        return refused(details)
    if _FULL in details:
        return StoreFull(
            "etcd's store is full and takes no writes: compact and defragment it, then disarm its "
            f"alarm ({details})"
        )
    if code in _UNANSWERED:
        return Fate.UNANSWERED
    if code is StatusCode.OUT_OF_RANGE and "compacted" in details:
        return Compacted(f"etcd no longer keeps that revision: {details}")
    if code is StatusCode.NOT_FOUND and "lease" in details:
        return LeaseLost(f"the lease has ended: {details}")
    return RequestRefused(f"etcd refused the request: {details} ({code.name})")


def refused(details: str) -> PermissionRefused:
    """Names the settings, also where it is logged long after the start."""
    return PermissionRefused(
        f"etcd refused access ({details}): check --etcd-user and --etcd-password-file, or the "
        "certificate of --etcd-cert"
    )
