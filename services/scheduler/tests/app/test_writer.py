"""The leader's writes when etcd's answers, or the writes themselves, come late."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
import pytest_asyncio

from libs.clock import SystemClock
from libs.cluster.client import EtcdClient
from libs.cluster.election import Election, Leadership
from libs.cluster.errors import OutcomeUnknown
from libs.cluster.ops import Compare, Op, Put, TxnResult
from services.scheduler.app.writer import GuardedWriter, LeadershipLost

KEY = "/impala/test/record"


class LateNetwork(EtcdClient):
    """Holds back copies of transactions: `lost` of them get no answer, and are sent later."""

    lost = 0
    answer_lost = 0

    def __init__(self, endpoint: str) -> None:
        super().__init__([endpoint])
        self.held_back: list[tuple[Any, ...]] = []

    async def txn(
        self, compares: Sequence[Compare], then: Sequence[Op] = (), else_: Sequence[Op] = ()
    ) -> TxnResult:
        if self.lost:
            self.lost -= 1
            self.held_back.append((compares, then, else_))
            raise OutcomeUnknown("no answer in time")
        result = await super().txn(compares, then, else_)
        if self.answer_lost:
            self.answer_lost -= 1
            raise OutcomeUnknown("no answer in time")
        return result

    async def deliver_late(self) -> list[TxnResult]:
        return [await super(LateNetwork, self).txn(*each) for each in self.held_back]


@pytest_asyncio.fixture
async def late(client: EtcdClient) -> AsyncIterator[LateNetwork]:
    async with LateNetwork(client.transport.addresses[0]) as network:
        await network.delete_prefix("/impala/")
        yield network


@pytest_asyncio.fixture
async def leadership(late: LateNetwork) -> AsyncIterator[Leadership]:
    async with await Election(late, "writer", "me").campaign() as won:
        yield won


async def value(client: EtcdClient) -> bytes | None:
    entry = await client.get(KEY)
    return entry.value if entry else None


async def test_a_write_that_arrives_after_a_later_one_changes_nothing(
    late: LateNetwork, leadership: Leadership
) -> None:
    writer = GuardedWriter(late, leadership, SystemClock())
    late.lost = 1
    await writer.commit([Put(KEY, b"first")])
    await writer.commit([Put(KEY, b"second")])
    assert [result.succeeded for result in await late.deliver_late()] == [False]
    assert await value(late) == b"second"


@pytest.mark.parametrize("answers", [1, 6])
async def test_a_write_whose_answers_are_lost_is_applied_once(
    late: LateNetwork, leadership: Leadership, answers: int
) -> None:
    writer = GuardedWriter(late, leadership, SystemClock())
    await writer.commit([Put(KEY, b"before")])
    late.answer_lost = answers
    await writer.commit([Put(KEY, b"after")])
    entry = await late.get(KEY)
    assert entry is not None and entry.value == b"after"
    before = await late.get(KEY, revision=entry.mod_revision - 1)
    assert before is not None and before.value == b"before"


async def test_a_leader_that_was_succeeded_writes_nothing(
    late: LateNetwork, leadership: Leadership
) -> None:
    writer = GuardedWriter(late, leadership, SystemClock())
    await leadership.resign()
    with pytest.raises(LeadershipLost):
        await writer.commit([Put(KEY, b"late")])
    assert await value(late) is None
