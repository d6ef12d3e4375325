"""The sampler: distributions, independence from the batch, and what each parameter does."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from services.modelserver.herd.engine.sampled import RowSampling
from services.modelserver.herd.engine.sampler import sample, uniform
from services.modelserver.herd.engine.sampling_params import BadSampling, SamplingParams

GREEDY: dict[str, Any] = {"temperature": 0.0}


def row(tokens: Sequence[int] = (), num_prompt: int = 0, **params: Any) -> RowSampling:
    return RowSampling(SamplingParams(**({"seed": 1} | params)), tokens, num_prompt)


def sample_one(logits: Sequence[float], sampling: RowSampling, eos: Sequence[int] = ()) -> int:
    return sample(torch.tensor([list(logits)]), [sampling], eos).tokens[0]


def support(logits: Sequence[float], draws: int = 300, **params: Any) -> set[int]:
    """Every token that comes up in ``draws`` seeds."""
    rows = [row(**{**params, "seed": seed}) for seed in range(draws)]
    return set(sample(torch.tensor([list(logits)]).repeat(draws, 1), rows).tokens)


def of_probabilities(*probabilities: float) -> list[float]:
    return [math.log(p) for p in probabilities]


class TestGreedy:
    def test_takes_the_most_likely_token_of_each_row(self) -> None:
        logits = torch.tensor([[0.0, 3.0, 1.0], [5.0, 3.0, 1.0]])
        assert sample(logits, [row(**GREEDY), row(**GREEDY)]).tokens == [1, 0]

    def test_needs_no_seed(self) -> None:
        assert sample_one([0.0, 1.0], row(temperature=0.0, seed=None)) == 1

    def test_an_empty_step_samples_nothing(self) -> None:
        assert sample(torch.empty(0, 8), []).tokens == []

    def test_rows_and_logits_must_agree(self) -> None:
        with pytest.raises(ValueError):
            sample(torch.zeros(2, 4), [row()])


class TestDrawing:
    def test_frequencies_follow_the_probabilities(self) -> None:
        wanted = torch.tensor([0.5, 0.3, 0.15, 0.05])
        draws = 4000
        rows = [row(seed=seed) for seed in range(draws)]
        tokens = torch.tensor(sample(wanted.log().repeat(draws, 1), rows).tokens)
        found = torch.bincount(tokens, minlength=4) / draws
        assert torch.allclose(found, wanted, atol=0.03)

    def test_temperature_flattens(self) -> None:
        logits = torch.tensor([[4.0, 0.0]]).repeat(500, 1)
        rows = [row(seed=seed, temperature=8.0) for seed in range(500)]
        share = sum(sample(logits, rows).tokens) / 500
        assert share == pytest.approx(1 / (1 + math.exp(0.5)), abs=0.06)

    def test_each_position_draws_anew_and_the_same_position_again_the_same(self) -> None:
        logits = [0.0] * 50
        tokens = [sample_one(logits, row(tokens=[9] * (3 + n), num_prompt=3)) for n in range(40)]
        assert len(set(tokens)) > 15
        again = [sample_one(logits, row(tokens=[9] * (8 + n), num_prompt=8)) for n in range(40)]
        assert tokens == again, "the counter is the sampled tokens, not the prompt's length"

    @given(seed=st.integers(-(2**63), 2**64), at=st.integers(0, 20), others=st.integers(0, 20))
    @settings(max_examples=40, deadline=None)
    def test_a_row_does_not_see_its_neighbours(self, seed: int, at: int, others: int) -> None:
        generator = torch.Generator().manual_seed(5)
        logits = torch.randn(others + 1, 3000, generator=generator)
        at = at % (others + 1)
        rows = [
            row(
                [i, 5, 5, 2999, i + 7],
                1,
                seed=100 + i,
                temperature=0.1 * i,
                top_p=1 - 0.04 * i,
                top_k=7 * i,
                presence_penalty=0.1 * (i % 3),
                frequency_penalty=-0.05 * i,
                repetition_penalty=1 + 0.1 * (i % 2),
                logit_bias=((i, 3.0), (2999, -5.0)) if i % 4 else (),
                min_tokens=i,
            )
            for i in range(others + 1)
        ]
        rows[at] = row(
            [3, 5, 5, 5, 8], 2, seed=seed, top_p=0.9, min_p=0.01,
            frequency_penalty=0.5, repetition_penalty=1.3, logit_bias=((5, 4.0),),
        )  # fmt: skip
        together = sample(logits, rows, eos_ids=(1, 2)).tokens[at]
        assert sample(logits[at : at + 1], [rows[at]], eos_ids=(1, 2)).tokens == [together]

    def test_a_row_that_draws_needs_a_seed(self) -> None:
        with pytest.raises(ValueError, match="seed"):
            sample_one([0.0, 1.0], row(seed=None))

    def test_masked_tokens_are_never_drawn(self) -> None:
        dead = float("-inf")
        assert support([dead, 0.0, dead, 0.0, dead]) == {1, 3}

    @given(st.integers(), st.integers(0, 2**40))
    def test_noise_is_in_the_half_open_unit_interval(self, seed: int, count: int) -> None:
        assert 0.0 <= uniform(seed, count) < 1.0

    @pytest.mark.parametrize("broken", [math.nan, math.inf, -math.inf])
    @pytest.mark.parametrize("params", [{}, {"top_p": 0.5}, {"top_k": 2}, {"min_p": 0.5}])
    def test_broken_logits_of_one_row_give_a_token_that_exists_and_leave_the_others_alone(
        self, broken: float, params: dict[str, Any]
    ) -> None:
        rows = [row(seed=seed, temperature=1.0, **params) for seed in (1, 2)]
        good = [0.5, 1.0, 2.0, 0.1]
        logits = torch.tensor([[broken] * 4, good])
        tokens = sample(logits, rows).tokens
        assert 0 <= tokens[0] < 4
        assert tokens[1] == sample_one(good, rows[1])

    @given(
        st.floats(0.01, 100.0),
        st.floats(-2.0, 2.0),
        st.sampled_from([1e-5, 1e-3, 1.0, 2.0]),
        st.floats(-100.0, 100.0),
    )
    def test_every_allowed_combination_draws_a_token_that_exists(
        self, repetition: float, penalty: float, temperature: float, bias: float
    ) -> None:
        sampling = row(
            [0, 1, 2, 2, 2],
            1,
            seed=3,
            temperature=temperature,
            repetition_penalty=repetition,
            presence_penalty=penalty,
            frequency_penalty=penalty,
            logit_bias=((1, bias),),
            top_p=0.9,
        )
        assert 0 <= sample_one([50.0, -50.0, 0.0, 1e-30], sampling) < 4


class TestTruncation:
    LOGITS = of_probabilities(0.4, 0.3, 0.2, 0.07, 0.03)

    @pytest.mark.parametrize(
        ("params", "kept"),
        [
            ({"top_k": 1}, {0}),
            ({"top_k": 3}, {0, 1, 2}),
            ({"top_k": 99}, {0, 1, 2, 3, 4}),
            ({"top_p": 0.39}, {0}),
            ({"top_p": 0.41}, {0, 1}),
            ({"top_p": 0.95}, {0, 1, 2, 3}),
            ({"min_p": 0.4}, {0, 1, 2}),
            ({"min_p": 1.0}, {0}),
            # 0.4 and 0.3 renormalize to 0.57 and 0.43 once top_k has cut.
            ({"top_k": 2, "top_p": 0.5}, {0}),
            ({"top_k": 4, "top_p": 0.6, "min_p": 0.9}, {0}),
        ],
    )
    def test_keeps(self, params: dict[str, Any], kept: set[int]) -> None:
        assert support(self.LOGITS, **params) == kept

    def test_ties_of_the_kth_stay(self) -> None:
        assert support([1.0, 1.0, 1.0, 0.0], top_k=2) == {0, 1, 2}

    def test_top_p_over_a_flat_vocabulary_keeps_its_share(self) -> None:
        """More tokens than the shortlist holds: a slope so slight that half of 6,000 are needed."""
        logits = torch.linspace(0.0, -1e-3, 6000)
        rows = [row(seed=seed, top_p=0.5) for seed in range(400)]
        tokens = sample(logits.repeat(400, 1), rows).tokens
        assert max(tokens) <= 3001
        assert max(tokens) > 2900

    def test_min_p_alone_over_a_flat_vocabulary_keeps_all(self) -> None:
        assert max(support([0.0] * 3000, draws=600, min_p=0.5)) > 2900


class TestPenalties:
    def test_presence_counts_once_and_frequency_each_time(self) -> None:
        seen = [7, 0, 0, 1]  # a prompt of one token, then three sampled
        base: dict[str, Any] = {"tokens": seen, "num_prompt": 1, **GREEDY}
        assert sample_one([2.0, 1.8, 0.0], row(**base, presence_penalty=1.0)) == 0
        assert sample_one([2.0, 1.8, 0.0], row(**base, frequency_penalty=1.0)) == 1
        assert sample_one([2.0, 1.8, 1.5], row(**base, presence_penalty=1.0)) == 2

    def test_the_prompt_is_not_output(self) -> None:
        sampling = row(tokens=[0, 0], num_prompt=2, presence_penalty=2.0, **GREEDY)
        assert sample_one([1.0, 0.5], sampling) == 0

    def test_repetition_discourages_prompt_and_output_on_both_sides_of_zero(self) -> None:
        base: dict[str, Any] = {
            "tokens": [0, 1],
            "num_prompt": 1,
            "repetition_penalty": 2.0,
            **GREEDY,
        }
        assert sample_one([1.0, 0.2, 0.6], row(**base)) == 2
        assert sample_one([-0.4, -0.4, -0.6], row(**base)) == 2

    def test_bias_adds_and_bans(self) -> None:
        assert sample_one([3.0, 0.0], row(logit_bias=((1, 4.0),), **GREEDY)) == 1
        assert support([3.0, 0.0], logit_bias=((0, -100.0),)) == {1}

    def test_end_tokens_wait_for_min_tokens(self) -> None:
        logits = [5.0, 4.0, 3.0]
        early: dict[str, Any] = {"min_tokens": 2, "stop_token_ids": (1,), "num_prompt": 1, **GREEDY}
        assert sample_one(logits, row(tokens=[9, 9], **early), eos=[0]) == 2
        assert sample_one(logits, row(tokens=[9, 9, 9], **early), eos=[0]) == 0

    def test_a_neighbours_penalties_leave_the_row_and_the_logits_alone(self) -> None:
        logits = torch.tensor([[3.0, 0.0], [3.0, 0.0]])
        rows = [row(**GREEDY), row(logit_bias=((0, -100.0),), **GREEDY)]
        assert sample(logits, rows).tokens == [0, 1]
        assert logits.tolist() == [[3.0, 0.0], [3.0, 0.0]]


class TestLogprobs:
    def test_are_of_the_raw_distribution(self) -> None:
        logits = torch.tensor([of_probabilities(0.5, 0.3, 0.2)])
        bias: dict[str, Any] = {"logit_bias": ((2, 50.0),), "temperature": 0.0}
        (found,) = sample(logits, [row(logprobs=2, **bias)]).logprobs
        assert found is not None
        assert found.chosen == pytest.approx(math.log(0.2), abs=1e-6)
        assert [token for token, _ in found.top] == [0, 1]
        assert [log for _, log in found.top] == pytest.approx(of_probabilities(0.5, 0.3))

    def test_each_row_gets_as_many_as_it_asked_for(self) -> None:
        logits = torch.randn(3, 40, generator=torch.Generator().manual_seed(0))
        rows = [row(logprobs=20), row(), row(logprobs=0)]
        many, none, chosen_only = sample(logits, rows).logprobs
        assert many is not None
        assert len(many.top) == 20
        assert none is None
        assert chosen_only is not None
        assert chosen_only.top == ()


class TestParams:
    @pytest.mark.parametrize(
        ("field", "value"),
        [
            ("temperature", -0.1),
            ("temperature", math.nan),
            ("temperature", math.inf),
            ("top_k", -1),
            ("top_p", 0.0),
            ("top_p", 1.01),
            ("min_p", 1.5),
            ("presence_penalty", 2.1),
            ("frequency_penalty", -2.1),
            ("repetition_penalty", 0.0),
            ("repetition_penalty", 1e-40),
            ("repetition_penalty", 1e300),
            ("logit_bias", ((3, 101.0),)),
            ("logprobs", 21),
            ("min_tokens", -1),
        ],
    )
    def test_a_value_out_of_range_names_its_field(self, field: str, value: Any) -> None:
        with pytest.raises(BadSampling, match=field) as error:
            SamplingParams(**{field: value})
        assert error.value.field == field

    @pytest.mark.parametrize(
        ("field", "value"), [("logit_bias", ((8, 1.0),)), ("stop_token_ids", (-1,))]
    )
    def test_token_ids_must_be_in_the_vocabulary(self, field: str, value: Any) -> None:
        params = SamplingParams(**{field: value})
        with pytest.raises(BadSampling, match=field):
            params.check_vocabulary(8)
