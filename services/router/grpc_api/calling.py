"""What every servicer does around its work: find the caller, map the router's own errors."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from typing import Any

import grpc

from libs import errors
from libs.cluster.errors import PASSING, ClusterError
from services.router.core.errors import RequestError
from services.router.domain_errors import IdempotencyKeyReused
from services.router.failures import failure_of
from services.router.parts import Parts

Context = grpc.aio.ServicerContext[Any, Any]

_NOT_REASON = re.compile(r"[^A-Z0-9]+")


def metadata_of(context: Context) -> dict[str, str]:
    pairs = context.invocation_metadata() or ()
    return {str(key): value for key, value in pairs if isinstance(value, str)}


def account_of(parts: Parts, context: Context) -> str:
    """Raises Unauthenticated."""
    metadata = metadata_of(context)
    return parts.access.account(metadata.get("authorization"), metadata.get("x-api-key"))


def owner_of(parts: Parts, context: Context) -> str:
    """Whose share of the process's memory the call takes."""
    metadata = metadata_of(context)
    # "ipv4:127.0.0.1:50000": the port is another at each connection.
    host = context.peer().rpartition(":")[0]
    return parts.access.owner(metadata.get("authorization"), metadata.get("x-api-key"), host)


@contextlib.contextmanager
def as_status() -> Iterator[None]:
    """The router's errors as the tree that `libs.rpc` maps to statuses."""
    try:
        yield
    except RequestError as error:
        field = _field(error.param)
        raise errors.InvalidArgument(error.message, _reason(error.code), field) from error
    except IdempotencyKeyReused as error:
        field = _field(error.field)
        raise errors.AlreadyExists(error.message, error.reason, field) from error
    except PASSING as error:
        message = failure_of(error).message
        raise errors.Unavailable(message, "CLUSTER_UNAVAILABLE", None, 1.0) from error
    except ClusterError as error:
        raise errors.Internal(str(error), _reason(error.reason)) from error


# What a header or a query's parameter is over HTTP is a field of the message here.
_FIELDS = {"Idempotency-Key": "idempotency_key", "after": "page.after"}


def _field(name: str | None) -> str | None:
    return None if name is None else _FIELDS.get(name, name)


def _reason(code: str | None) -> str:
    """`invalid_value` as INVALID_VALUE; a reason starts with a letter."""
    reason = _NOT_REASON.sub("_", (code or "invalid_request").upper()).strip("_")
    return reason if reason[:1].isalpha() else "INVALID_REQUEST"


def page_limit(limit: int, default: int = 100, maximum: int = 10_000) -> int:
    """0 means the default."""
    if limit > maximum:
        raise errors.InvalidArgument(
            f"The limit is {limit}, but must be at most {maximum}.", "LIMIT_TOO_LARGE", "page.limit"
        )
    return limit or default
