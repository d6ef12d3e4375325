from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from libs.errors import Internal
from services.modelserver.adapters.asked_together import AskedTogether


class Oracle:
    """Doubles what it is asked, once it is let."""

    def __init__(self) -> None:
        self.calls: list[list[int]] = []
        self.asked = asyncio.Event()
        self.may_answer = asyncio.Event()
        self.error: Exception | None = None

    async def __call__(self, questions: Sequence[int]) -> list[int]:
        self.calls.append(list(questions))
        self.asked.set()
        await self.may_answer.wait()
        if self.error is not None:
            raise self.error
        return [2 * question for question in questions]


async def test_what_is_asked_during_a_call_goes_together_in_the_next() -> None:
    oracle = Oracle()
    ask = AskedTogether(oracle, most=8)
    first = asyncio.create_task(ask(1))
    await oracle.asked.wait()
    others = [asyncio.create_task(ask(each)) for each in (2, 3, 4)]
    await asyncio.sleep(0)
    oracle.may_answer.set()
    assert [await each for each in (first, *others)] == [2, 4, 6, 8]
    assert oracle.calls == [[1], [2, 3, 4]]


async def test_a_call_takes_no_more_questions_than_it_may() -> None:
    oracle = Oracle()
    oracle.may_answer.set()
    ask = AskedTogether(oracle, most=2)
    assert await asyncio.gather(*(ask(each) for each in range(5))) == [0, 2, 4, 6, 8]
    assert [len(call) for call in oracle.calls] == [2, 2, 1]


async def test_a_failed_call_is_told_to_all_who_asked_in_it_and_the_next_goes_on() -> None:
    oracle = Oracle()
    oracle.error = ValueError("no")
    oracle.may_answer.set()
    ask = AskedTogether(oracle, most=2)
    answers = await asyncio.gather(ask(1), ask(2), return_exceptions=True)
    assert [type(each) for each in answers] == [ValueError, ValueError]
    oracle.error = None
    assert await ask(3) == 6


async def test_an_answer_too_few_is_the_fault_of_the_answerer_and_nobody_waits_for_ever() -> None:
    async def forgetful(questions: Sequence[int]) -> list[int]:
        return list(questions[1:])

    ask = AskedTogether(forgetful, most=2)
    for answer in await asyncio.gather(ask(1), ask(2), return_exceptions=True):
        assert isinstance(answer, Internal) and answer.reason == "BAD_ANSWER"


async def test_one_who_goes_away_is_asked_for_no_more_and_the_others_are_answered() -> None:
    oracle = Oracle()
    ask = AskedTogether(oracle, most=8)
    first = asyncio.create_task(ask(1))
    await oracle.asked.wait()
    gone, stays = asyncio.create_task(ask(2)), asyncio.create_task(ask(3))
    await asyncio.sleep(0)
    gone.cancel()
    await asyncio.gather(gone, return_exceptions=True)
    oracle.may_answer.set()
    assert [await first, await stays] == [2, 6]
    assert oracle.calls == [[1], [3]]


async def test_closing_cancels_those_who_still_wait() -> None:
    oracle = Oracle()
    ask = AskedTogether(oracle, most=1)
    asked = [asyncio.create_task(ask(each)) for each in (1, 2)]
    await oracle.asked.wait()
    await ask.aclose()
    with pytest.raises(asyncio.CancelledError):
        await asked[1]
    with pytest.raises(asyncio.CancelledError):
        await asked[0]
