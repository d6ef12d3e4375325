"""A real cluster under faults: what clients are told obeys the model. `bench.faults` does more."""

from __future__ import annotations

import pytest

from tests.robustness.campaign import Settings
from tests.robustness.faults import HOUR_S, STORE, Fault, Kind
from tests.robustness.setups import SHAPES, make_campaign

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
@pytest.mark.parametrize("shape", SHAPES)
async def test_batches_survive_drawn_faults(shape: str) -> None:
    making = make_campaign("fake", Settings(seed=20), shape=SHAPES[shape])
    async with making as (_, campaign):
        report = await campaign.run(10)
    assert report.violations == []
    assert len(report.injections) >= 10


OF_THE_STORE = {
    "local": (Kind.FROZEN,),
    "replicated": (Kind.STORE_ERRORS, Kind.STORE_CUT, Kind.STORE_SLOW),
}


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("shape", SHAPES)
async def test_batches_survive_a_store_that_fails_and_clocks_that_jump(shape: str) -> None:
    schedulers = ("scheduler-1", "scheduler-2")
    store = [Fault(kind, (STORE,), 0.3, 0.0, 2.0) for kind in OF_THE_STORE[shape]]
    clocks = [
        Fault(Kind.CLOCK, ("router-1",), 0.0, 0.0, 2.0, -HOUR_S),
        Fault(Kind.EXPIRY, schedulers, 0.2, 0.0, 4.0, HOUR_S),
    ]
    quorum = [Fault(Kind.QUORUM, ("etcd-1", "etcd-3"), 0.4, 0.0, 3.0)]
    making = make_campaign("fake", Settings(seed=5), shape=SHAPES[shape])
    async with making as (_, campaign):
        await campaign.round(store)
        await campaign.round(clocks)
        if shape == "replicated":
            await campaign.round(quorum)
    assert campaign.report.violations == []


@pytest.mark.slow
@pytest.mark.timeout(400)
async def test_the_real_model_answers_the_same_whatever_dies() -> None:
    async with make_campaign("demo", Settings(seed=3)) as (_, campaign):
        await campaign.round(FEW)
    assert campaign.report.violations == []
    assert len(campaign.report.injections) == len(FEW)
