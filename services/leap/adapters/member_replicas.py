"""The live model servers, read from their registrations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from libs.cluster.member import Member
from services.leap.core.version import Replica


class MembersView(Protocol):
    """libs.cluster's Members, as far as it is needed."""

    def current(self) -> Mapping[str, Member]: ...


class MemberReplicas:
    """Implements ports.Replicas over the members of service "modelserver"."""

    def __init__(self, members: MembersView) -> None:
        self._members = members

    def current(self) -> Sequence[Replica]:
        members = self._members.current()
        return [_replica(member_id, members[member_id].info) for member_id in sorted(members)]


def _replica(member_id: str, info: Mapping[str, Any]) -> Replica:
    """What a server does not say is unknown, never an error: it may run another release."""
    return Replica(
        member_id=member_id,
        model=str(info.get("model", "")),
        state=str(info.get("phase", "unknown")).upper(),
        applied_seq=int(info.get("weight_seq", 0)),
        applied_digest=bytes.fromhex(str(info.get("weight_digest", ""))),
    )
