"""Where steps go: by grant, elsewhere when refused, and by the router's own word at last."""

from __future__ import annotations

import asyncio
from typing import Any

import openai
import pytest
import pytest_asyncio

from libs.errors import (
    Aborted,
    FailedPrecondition,
    ResourceExhausted,
    Unavailable,
)
from services.router.tests.conftest import MODEL, Stage

ASK: Any = [{"role": "user", "content": "Hi"}]


@pytest_asyncio.fixture(loop_scope="session")
async def stage(fresh: Stage) -> Stage:
    """These tests change who serves and who leads."""
    return fresh


async def ask(stage: Stage) -> str:
    answer = await stage.openai().chat.completions.create(
        model=MODEL,
        messages=ASK,
    )
    return answer.choices[0].message.content or ""


@pytest.mark.parametrize(
    "refusal",
    [
        FailedPrecondition("Old.", "WEIGHTS_TOO_OLD"),
        ResourceExhausted("Full.", "QUEUE_FULL"),
        Unavailable("Going away.", "DRAINING"),
    ],
)
async def test_a_server_that_refuses_is_excluded_from_the_next_grant(
    stage: Stage, refusal: Exception
) -> None:
    stage.server.failures = [refusal]  # type: ignore[list-item]
    other = await stage.add_server("From the other one.")
    stage.scheduler.servers.append((other.member_id, other.address))
    # Round robin: make the refusing one the first.
    stage.scheduler.servers = [
        (other.member_id, other.address),
        (stage.server.member_id, stage.server.address),
    ]
    assert await ask(stage) == "From the other one."
    first, second = stage.scheduler.acquired
    assert second.exclude_member == stage.server.member_id
    assert first.step_id != second.step_id
    await stage.scheduler.wait_until(lambda scheduler: len(scheduler.released) == 1)
    assert stage.scheduler.released[0].grant_id == "grant-1"


@pytest.mark.parametrize(
    "refusal",
    [FailedPrecondition("Late.", "GRANT_EXPIRED"), Aborted("Newer leader.", "EPOCH_STALE")],
)
async def test_a_stale_grant_is_asked_for_again_of_any_server(
    stage: Stage, refusal: Exception
) -> None:
    stage.server.failures = [refusal]  # type: ignore[list-item]
    assert await ask(stage) == "Hello there, agent."
    assert [each.exclude_member for each in stage.scheduler.acquired] == ["", ""]


async def test_a_fleet_whose_servers_are_away_is_told_by_the_clients_own_name_for_the_model(
    stage: Stage,
) -> None:
    stage.scheduler.servers = []
    body = {"model": MODEL, "messages": ASK}
    answer = await stage.http().post("/v1/chat/completions", json=body)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (503, "no_servers")
    assert error["message"] == (
        f"No server of the model '{MODEL}' is up now: try again soon. One that is started again "
        "answers once it has loaded the model."
    )
    assert (answer.headers["retry-after"], answer.headers["retry-after-ms"]) == ("1", "1000")


async def test_tries_are_bounded(stage: Stage) -> None:
    stage.server.failures = [Aborted("Again.", "EPOCH_STALE") for _ in range(10)]
    with pytest.raises(openai.ConflictError):
        await ask(stage)
    assert len(stage.server.requests) == 4


async def test_a_server_lost_after_the_first_token_is_not_replaced(stage: Stage) -> None:
    stage.server.fail_after = (2, Unavailable("Gone.", "ENGINE_LOST"))
    stream = await stage.openai().chat.completions.create(
        model=MODEL,
        messages=ASK,
        stream=True,
    )
    with pytest.raises(openai.APIError):
        async for _ in stream:
            pass
    assert len(stage.server.requests) == 1


async def test_without_any_scheduler_the_router_places_and_says_so(bare: Stage) -> None:
    await bare.add_server()
    await bare.add_router()
    assert await ask(bare) == "Hello there, agent."
    request = bare.server.requests[0]
    assert not request.HasField("grant")
    assert request.self_placed.reason == "no scheduler leads this fleet"
    metrics = (await bare.http().get("/metrics")).text
    assert 'impala_self_placed_steps_total{model="tiny"} 1.0' in metrics


async def test_equal_prefixes_meet_on_one_server_without_a_scheduler(bare: Stage) -> None:
    for _ in range(3):
        await bare.add_server()
    await bare.add_router(scheduler_patience_s=0.0)
    client = bare.openai()
    for number in range(12):
        system = f"You are agent {number % 3}. " + "Long policy. " * 30
        await client.chat.completions.create(
            model=MODEL,
            messages=[
                {"role": "system", "content": system},
                {"role": "user", "content": f"Question {number}"},
            ],
        )
    homes: dict[tuple[int, ...], set[str]] = {}
    for server in bare.servers:
        for request in server.requests:
            homes.setdefault(tuple(request.prompt[:60]), set()).add(server.member_id)
    assert len(homes) == 3
    assert all(len(members) == 1 for members in homes.values())


async def test_a_scheduler_that_no_longer_leads_is_waited_for_then_passed_over(
    stage: Stage,
) -> None:
    stage.scheduler.leader = "sched-9"
    assert await ask(stage) == "Hello there, agent."
    assert stage.server.requests[0].HasField("self_placed")
    assert len(stage.scheduler.acquired) >= 2


async def test_a_new_leader_is_found_by_watching(stage: Stage) -> None:
    await stage.leaderships[0].resign()
    await stage.schedulers[0].stop()
    second = await stage.add_scheduler()
    assert await ask(stage) == "Hello there, agent."
    assert len(second.acquired) == 1


async def test_who_goes_away_before_the_grant_comes_has_it_taken_back(stage: Stage) -> None:
    stage.scheduler.hold = asyncio.Event()
    asking = asyncio.create_task(ask(stage))
    await stage.scheduler.wait_until(lambda scheduler: scheduler.waiting == 1)
    asking.cancel()
    await stage.scheduler.wait_until(lambda scheduler: len(scheduler.released) == 1)
    assert stage.scheduler.released[0].step_id == stage.scheduler.acquired[0].step_id
    assert stage.server.requests == []


async def test_a_step_given_up_before_its_server_knows_it_gives_its_grant_back(
    stage: Stage,
) -> None:
    stage.server.on_its_way = asyncio.Event()
    asking = asyncio.create_task(ask(stage))
    await stage.server.wait_until(lambda server: len(server.requests) == 1)
    asking.cancel()
    await stage.scheduler.wait_until(lambda scheduler: len(scheduler.released) == 1)
    assert stage.scheduler.released[0].grant_id == "grant-1"


async def test_a_grant_is_waited_for_as_long_as_the_leader_lives(stage: Stage) -> None:
    stage.scheduler.hold = asyncio.Event()
    asking = asyncio.create_task(ask(stage))
    await stage.scheduler.wait_until(lambda scheduler: scheduler.waiting == 1)
    stage.scheduler.hold.set()
    assert await asking == "Hello there, agent."
    assert stage.server.requests[0].HasField("grant")
