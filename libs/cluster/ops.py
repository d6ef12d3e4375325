"""The parts of a transaction: compares that must all hold, and operations of either branch.

txn = await client.txn(
    [Compare.mod("/impala/x") == 7, leadership.guard()],
    then=[Put("/impala/x", b"new")],
    else_=[Get("/impala/x")],
)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Self

from etcd.api.etcdserverpb import rpc_pb2
from libs.cluster.entry import Entry, entry_of, prefix_end

Target = Literal["mod_revision", "create_revision", "lease", "value"]


@dataclass(frozen=True, slots=True)
class Compare:
    """A condition on one key. An absent key has all its numbers 0."""

    key: str
    target: Target
    number: int = 0
    value: bytes = b""

    @classmethod
    def mod(cls, key: str) -> Number:
        """The revision that last wrote the key."""
        return Number(key, "mod_revision")

    @classmethod
    def create(cls, key: str) -> Number:
        """The revision that created the key: what an election's epoch is."""
        return Number(key, "create_revision")

    @classmethod
    def lease(cls, key: str) -> Number:
        """The lease that the key hangs on."""
        return Number(key, "lease")

    @classmethod
    def absent(cls, key: str) -> Self:
        return cls(key, "create_revision", 0)

    @classmethod
    def value_is(cls, key: str, value: bytes) -> Self:
        return cls(key, "value", value=value)

    def message(self) -> rpc_pb2.Compare:
        compare = rpc_pb2.Compare(result=rpc_pb2.Compare.EQUAL, key=self.key.encode())
        match self.target:
            case "mod_revision":
                compare.target = rpc_pb2.Compare.MOD
                compare.mod_revision = self.number
            case "create_revision":
                compare.target = rpc_pb2.Compare.CREATE
                compare.create_revision = self.number
            case "lease":
                compare.target = rpc_pb2.Compare.LEASE
                compare.lease = self.number
            case "value":
                compare.target = rpc_pb2.Compare.VALUE
                compare.value = self.value
        return compare


class Number:
    """One number of a key, waiting for `== n` to become a Compare. Not a value: it has no hash and
    no order, and `==` never answers a bool."""

    __slots__ = ("key", "target")
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, key: str, target: Target) -> None:
        self.key = key
        self.target = target

    def __eq__(self, number: int) -> Compare:  # type: ignore[override]
        return Compare(self.key, self.target, number)


@dataclass(frozen=True, slots=True)
class Get:
    """Reads one key, or with `prefix` all that begin with `key`."""

    key: str
    prefix: bool = False

    def message(self) -> rpc_pb2.RequestOp:
        end = prefix_end(self.key) if self.prefix else b""
        return rpc_pb2.RequestOp(
            request_range=rpc_pb2.RangeRequest(key=self.key.encode(), range_end=end)
        )


@dataclass(frozen=True, slots=True)
class Put:
    key: str
    value: bytes
    lease: int = 0

    def message(self) -> rpc_pb2.RequestOp:
        return rpc_pb2.RequestOp(
            request_put=rpc_pb2.PutRequest(
                key=self.key.encode(), value=self.value, lease=self.lease
            )
        )


@dataclass(frozen=True, slots=True)
class Delete:
    """Deletes one key, or with `prefix` all that begin with `key`."""

    key: str
    prefix: bool = False

    def message(self) -> rpc_pb2.RequestOp:
        end = prefix_end(self.key) if self.prefix else b""
        return rpc_pb2.RequestOp(
            request_delete_range=rpc_pb2.DeleteRangeRequest(key=self.key.encode(), range_end=end)
        )


Op = Get | Put | Delete


@dataclass(frozen=True, slots=True)
class TxnResult:
    """Which branch ran, at which revision, and for each of its operations what it read (empty for
    a Put) or how many keys it deleted."""

    succeeded: bool
    revision: int
    reads: tuple[tuple[Entry, ...], ...]
    deleted: tuple[int, ...]

    def entry(self, op: int = 0) -> Entry | None:
        """What the Get at that place of the branch found."""
        found = self.reads[op]
        return found[0] if found else None


def txn_request(
    compares: Sequence[Compare], then: Sequence[Op], else_: Sequence[Op]
) -> rpc_pb2.TxnRequest:
    return rpc_pb2.TxnRequest(
        compare=[compare.message() for compare in compares],
        success=[op.message() for op in then],
        failure=[op.message() for op in else_],
    )


def txn_result(response: rpc_pb2.TxnResponse) -> TxnResult:
    return TxnResult(
        succeeded=response.succeeded,
        revision=response.header.revision,
        reads=tuple(
            tuple(entry_of(kv) for kv in answer.response_range.kvs) for answer in response.responses
        ),
        deleted=tuple(answer.response_delete_range.deleted for answer in response.responses),
    )
