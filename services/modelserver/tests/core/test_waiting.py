"""Turns in the queue, and who waits for whom."""

from services.modelserver.herd.core.claims import Claims
from services.modelserver.herd.core.sequence import Sequence, Status
from services.modelserver.herd.core.waiting import WaitingQueue
from services.modelserver.tests.core.factories import make_sequence


def arrived(name: str, arrival: int, *, priority: int = 0, preempted: bool = False) -> Sequence:
    seq = make_sequence(name, f"{name}:5", priority=priority)
    seq.arrival = arrival
    seq.status = Status.PREEMPTED if preempted else Status.WAITING
    return seq


def test_priority_then_preempted_then_arrival() -> None:
    queue = WaitingQueue()
    for seq in (
        arrived("late", 5),
        arrived("early", 1),
        arrived("less", 0, priority=1),
        arrived("lost its blocks", 4, preempted=True),
        arrived("urgent", 6, priority=-1),
    ):
        queue.push(seq)
    order = [seq.seq_id for seq in queue]
    assert order == ["urgent", "lost its blocks", "early", "late", "less"]


def test_removal_takes_the_one_meant() -> None:
    queue = WaitingQueue()
    seqs = [arrived(str(n), n) for n in range(4)]
    for seq in seqs:
        queue.push(seq)
    queue.remove(seqs[2])
    assert [seq.arrival for seq in queue] == [0, 1, 3]
    assert len(queue) == 3


def test_the_first_claim_stands() -> None:
    claims = Claims()
    first, second = make_sequence("a", "x:64"), make_sequence("b", "x:64")
    claims.claim(first, 0)
    claims.claim(second, 0)
    claims.drop(second)
    assert all(claims.is_claimed(key) for key in first.keys)
    claims.landed(first, first.keys[0])
    assert [claims.is_claimed(key) for key in first.keys] == [False, True]
    claims.drop(first)
    assert not any(claims.is_claimed(key) for key in first.keys)
