"""How often a step is tried, after what rests, and when it is not tried again."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import pytest_asyncio

from impala.modelserver.v1 import modelserver_pb2
from impala.scheduler.v1 import scheduler_pb2
from libs.errors import Aborted, Cancelled, ImpalaError, Internal, InvalidArgument, Unavailable
from services.router.channels import Channels
from services.router.domain_errors import ServerLost
from services.router.fleets import Fleets
from services.router.placing import Placing
from services.router.steps import MAX_ATTEMPTS, MAX_LOSSES, StepRequest, Steps, is_retryable
from services.router.tests.conftest import FLEET, GREETING, MODEL, Stage

DRAINING = Unavailable("This server is going away.", "DRAINING", None, 1.0)


@dataclass
class Trial:
    """Steps before two servers; their rests take no time."""

    stage: Stage
    placing: Placing
    channels: Channels
    rests: list[float] = field(default_factory=list)

    async def rest(self, seconds: float) -> None:
        self.rests.append(seconds)

    async def run(self, *, is_line: bool = False, **options: Any) -> int:
        """Runs one step; how many messages it gave."""
        steps = Steps(self.placing, self.channels, sleep=self.rest, **options)
        request = StepRequest(
            fleet=FLEET,
            acquire=scheduler_pb2.AcquireRequest(model=MODEL),
            generate=modelserver_pb2.GenerateRequest(model=MODEL, prompt=[5, 6, 7]),
            within_s=30.0,
            may_self_place=not is_line,
        )
        async with contextlib.aclosing(steps.run("step", request)) as messages:
            return len([message async for message in messages])

    @property
    def tried(self) -> list[str]:
        """Ids of the attempts that came to a server."""
        requests = [each for server in self.stage.servers for each in server.requests]
        return sorted(each.step_id for each in requests)


@pytest_asyncio.fixture(loop_scope="session")
async def trial(bare: Stage) -> AsyncIterator[Trial]:
    await bare.add_server(GREETING)
    await bare.add_server(GREETING)
    await bare.add_scheduler()
    fleets, channels = Fleets(bare.client), Channels()
    await fleets.start()
    placing = Placing(fleets, channels)
    yield Trial(bare, placing, channels)
    await placing.aclose()
    await channels.aclose()
    await fleets.aclose()


async def test_each_further_attempt_rests_twice_as_long(trial: Trial) -> None:
    for server in trial.stage.servers:
        server.failures = [DRAINING, DRAINING]
    with pytest.raises(Unavailable, match="going away"):
        await trial.run(backoff_s=0.1, chance=lambda: 0.0)
    assert trial.rests == pytest.approx([0.1, 0.2, 0.4])
    assert trial.tried == ["step", "step.2", "step.3", "step.4"]
    assert len(trial.tried) == MAX_ATTEMPTS


async def test_chance_takes_up_to_half_of_a_rest(trial: Trial) -> None:
    for server in trial.stage.servers:
        server.failures = [DRAINING]
    assert await trial.run(backoff_s=0.1, chance=lambda: 0.5) > 1
    assert trial.rests == pytest.approx([0.075, 0.15])


async def test_no_rest_is_longer_than_the_time_left(trial: Trial) -> None:
    for server in trial.stage.servers:
        server.failures = [DRAINING]
    with pytest.raises(Unavailable, match="going away"):
        await trial.run(backoff_s=60.0, chance=lambda: 0.0)
    assert trial.rests == []


@pytest.mark.parametrize(("is_line", "servers"), [(False, MAX_LOSSES), (True, 1)])
async def test_a_step_may_only_be_on_so_many_servers_that_are_lost(
    trial: Trial, is_line: bool, servers: int
) -> None:
    for server in trial.stage.servers:
        server.fail_after = (0, Unavailable("The engine stopped.", "ENGINE_DIED", None, 2.5))
    with pytest.raises(ServerLost) as lost:
        await trial.run(is_line=is_line)
    assert lost.value.retry_after_s == 2.5
    assert len(trial.tried) == servers


async def test_a_step_that_was_answered_in_part_is_not_begun_again(trial: Trial) -> None:
    for server in trial.stage.servers:
        server.fail_after = (2, Unavailable("Socket closed", "UNAVAILABLE"))
    with pytest.raises(ServerLost):
        await trial.run()
    assert trial.tried == ["step"]


async def test_a_step_that_the_model_fails_on_is_not_tried_elsewhere(trial: Trial) -> None:
    for server in trial.stage.servers:
        server.fail_after = (0, Internal("The model failed.", "STEP_FAULT"))
    with pytest.raises(Internal) as failed:
        await trial.run()
    assert failed.value.reason == "STEP_FAULT"
    assert trial.tried == ["step"]


@pytest.mark.parametrize(
    ("error", "retryable"),
    [
        (Unavailable("Gone.", "ENGINE_DIED"), True),
        (Unavailable("Socket closed", "UNAVAILABLE"), True),
        (Aborted("Old.", "EPOCH_STALE"), True),
        # What the transport says of a stream that was cut comes without a reason of ours.
        (Internal("Received RST_STREAM with error code 2", "INTERNAL"), True),
        (Cancelled("CANCELLED", "CANCELLED"), True),
        (Internal("The model failed.", "STEP_FAULT"), False),
        (Internal("Unexpected KeyError.", "UNEXPECTED_ERROR"), False),
        (Internal("Unexpected KeyError.", "UNKNOWN"), False),
        (InvalidArgument("No.", "PROMPT_EMPTY"), False),
    ],
)
def test_what_is_tried_again(error: ImpalaError, retryable: bool) -> None:
    assert is_retryable(error) is retryable
