from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from services.scheduler.core.admission import (
    AdmissionLimits,
    Candidate,
    blocks_needed,
    capacity,
    no_place,
)
from services.scheduler.core.placement import SCORERS, place
from services.scheduler.core.server import SERVING, UNREACHABLE, Server
from services.scheduler.core.step import Step

STEP = Step(step_id="s", arrived=0.0, prompt_tokens=100)


def server(name: str, serving: bool = True) -> Server:
    return Server(
        member_id=name,
        address=f"{name}:1",
        incarnation=f"{name}-life",
        phase=SERVING if serving else UNREACHABLE,
        max_steps=8,
        block_tokens=32,
        total_blocks=100,
    )


def candidate(name: str, load: int = 0, cached: int = 0, reserved: int = 0) -> Candidate:
    return Candidate(server(name), load, reserved, cached, blocks=4, capacity=12)


candidates = st.builds(
    candidate,
    st.sampled_from("abcdef"),
    st.integers(0, 12),
    st.integers(0, 100),
    st.integers(0, 99),
)


def test_of_equal_servers_the_less_loaded_one_is_taken() -> None:
    assert place(STEP, [candidate("a", load=3), candidate("b", load=2)], 0.0).chosen == "b"


def test_a_cached_prefix_outweighs_some_load_but_not_a_full_server() -> None:
    assert place(STEP, [candidate("a", load=6, cached=96), candidate("b")], 0.0).chosen == "a"
    assert place(STEP, [candidate("a", load=12, cached=96), candidate("b")], 0.0).chosen == "b"


def test_servers_that_may_not_have_it_say_why() -> None:
    down = replace(candidate("a"), server=server("a", serving=False))
    decision = place(STEP, [down, candidate("b", load=12), candidate("c", 1, reserved=98)], 0.0)
    assert decision.chosen == ""
    assert [s.why_not for s in decision.servers] == [
        "not serving",
        "full: 12 of 12 sequences",
        "no KV room: 98 of 100 blocks reserved",
    ]


def test_a_server_that_refused_the_step_is_the_last_resort() -> None:
    step = replace(STEP, exclude_member="a")
    assert place(step, [candidate("a"), candidate("b", load=11)], 0.0).chosen == "b"
    assert place(step, [candidate("a"), candidate("b", load=12)], 0.0).chosen == "a"


def test_an_empty_server_takes_a_step_of_any_size() -> None:
    huge = replace(STEP, choices=50, prompt_tokens=100_000)
    alone = replace(candidate("a"), blocks=4000)
    assert no_place(huge, alone) == ""
    assert no_place(huge, replace(alone, load=1)) != ""


def test_kv_is_reserved_for_what_is_new_and_for_each_choice() -> None:
    limits = AdmissionLimits(expected_output_tokens=64)
    assert blocks_needed(STEP, 32, 0, limits) == 6
    assert blocks_needed(STEP, 32, 96, limits) == 3
    assert blocks_needed(replace(STEP, max_tokens=4), 32, 96, limits) == 1
    assert blocks_needed(replace(STEP, choices=3), 32, 96, limits) == 7


def test_a_server_is_granted_somewhat_more_than_its_batch() -> None:
    assert capacity(server("a"), AdmissionLimits(overcommit=1.5)) == 12
    assert capacity(replace(server("a"), max_steps=0), AdmissionLimits()) == 1


@given(st.lists(candidates, max_size=6, unique_by=lambda c: c.server.member_id))
def test_the_choice_is_eligible_best_and_independent_of_order(found: list[Candidate]) -> None:
    decision = place(STEP, found, 0.0)
    assert decision.chosen == place(STEP, found[::-1], 0.0).chosen
    eligible = {s.member_id: s for s in decision.servers if not s.why_not}
    assert (decision.chosen != "") == bool(eligible)
    if eligible:
        assert eligible[decision.chosen].total == max(s.total for s in eligible.values())


@given(candidates)
def test_scores_lie_between_zero_and_one(found: Candidate) -> None:
    assert all(0.0 <= scorer.score(STEP, found) <= 1.0 for scorer in SCORERS)
