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


def test_a_waiter_waits_for_the_last_block_that_it_shares() -> None:
    claims = Claims()
    computing, waiter = make_sequence("a", "x:96+a:40"), make_sequence("b", "x:96+b:40")
    claims.claim(computing, 0)
    assert claims.last_shared(waiter, 0) == waiter.keys[2]
    claims.landed(computing, waiter.keys[0])
    assert claims.last_shared(waiter, 1) == waiter.keys[2]
    claims.drop(computing)
    assert claims.last_shared(waiter, 1) is None


def test_nobody_waits_for_a_block_that_it_could_not_hit() -> None:
    claims = Claims()
    claims.claim(make_sequence("a", "x:64"), 0)
    twin = make_sequence("b", "x:64")
    assert claims.last_shared(twin, 0) == twin.keys[0]
    assert claims.last_shared(twin, 1) is None


def test_the_first_claim_stands() -> None:
    claims = Claims()
    first, second = make_sequence("a", "x:64"), make_sequence("b", "x:64")
    claims.claim(first, 0)
    claims.claim(second, 0)
    claims.drop(second)
    assert all(claims.is_claimed(key) for key in first.keys)
