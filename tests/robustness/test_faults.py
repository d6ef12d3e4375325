"""A real cluster under faults: what clients are told obeys the model. `bench.faults` does more."""

from __future__ import annotations

import pytest

from tests.robustness.campaign import Settings
from tests.robustness.faults import Fault, Kind
from tests.robustness.setups import make_campaign

FEW = (
    Fault(Kind.KILL, ("router-1",), progress=0.0, delay_s=0.3),
    Fault(Kind.KILL_SEVERAL, ("modelserver-1", "scheduler-1"), progress=0.3, delay_s=0.1),
    Fault(Kind.KILL, ("etcd",), progress=0.6, delay_s=0.0),
)


async def test_batches_survive_three_faults() -> None:
    async with make_campaign("fake", Settings(seed=1)) as (_, campaign):
        await campaign.round(FEW)
    report = campaign.report
    assert report.violations == []
    assert len(report.injections) == len(FEW)


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_batches_survive_twenty_drawn_faults() -> None:
    async with make_campaign("fake", Settings(seed=20)) as (_, campaign):
        report = await campaign.run(20)
    assert report.violations == []
    assert len(report.injections) >= 20


@pytest.mark.slow
@pytest.mark.timeout(400)
async def test_the_real_model_answers_the_same_whatever_dies() -> None:
    async with make_campaign("demo", Settings(seed=3)) as (_, campaign):
        await campaign.round(FEW)
    assert campaign.report.violations == []
    assert len(campaign.report.injections) == len(FEW)
