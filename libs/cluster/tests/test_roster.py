"""The roster's rule about who is doubted and who is gone."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from libs.cluster.member import Member
from libs.cluster.roster import Roster

NEVER = float("-inf")


def member(name: str, epoch: int = 1) -> Member:
    return Member(name, "x", epoch)


def test_in_quiet_times_a_member_that_vanishes_is_gone_at_once() -> None:
    roster = Roster(grace_s=10)
    roster.add(member("a"))
    roster.remove("a", now=5, recovered_at=NEVER)
    assert roster.members == {}
    assert roster.next_due() is None


def test_after_an_outage_it_is_doubted_until_the_grace_is_over() -> None:
    roster = Roster(grace_s=10)
    roster.add(member("a"))
    roster.remove("a", now=101, recovered_at=100)
    assert set(roster.members) == {"a"} and roster.doubted == {"a"}
    assert roster.next_due() == 110
    roster.expire(109.9)
    assert set(roster.members) == {"a"}
    roster.expire(110)
    assert roster.members == {} and roster.next_due() is None


def test_registering_again_ends_the_doubt() -> None:
    roster = Roster(grace_s=10)
    roster.add(member("a"))
    roster.replace({}, now=101, recovered_at=100)
    roster.add(member("a", epoch=2))
    roster.expire(200)
    assert roster.members["a"].epoch == 2 and not roster.doubted


@given(
    st.lists(
        st.tuples(st.sampled_from(["add", "remove", "expire", "recover"]), st.sampled_from("abc"))
    )
)
def test_doubted_members_are_members_and_all_doubt_ends(steps: list[tuple[str, str]]) -> None:
    roster = Roster(grace_s=3)
    present: set[str] = set()
    recovered_at = NEVER
    for now, (what, who) in enumerate(steps):
        if what == "add":
            roster.add(member(who))
            present.add(who)
        elif what == "remove":
            roster.remove(who, now, recovered_at)
            present.discard(who)
        elif what == "expire":
            roster.expire(now)
        else:
            recovered_at = now
        assert present <= set(roster.members)
        assert set(roster.members) == present | roster.doubted
    roster.expire(len(steps) + 3)
    assert set(roster.members) == present
