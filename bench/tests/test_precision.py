import pytest
import torch

from bench.precision import Distance, distance, summary


def test_equal_logits_are_at_no_distance():
    logits = torch.randn(3, 50, generator=torch.Generator().manual_seed(0))
    found = distance(logits, logits + 7.0)  # a shift is no difference
    assert found.agrees == [True] * 3
    assert max(found.kl) < 1e-9


def test_kl_is_that_of_the_reference_against_the_other():
    truth = torch.tensor([[0.75, 0.25]]).log()
    other = torch.tensor([[0.5, 0.5]]).log()
    assert distance(truth, other).kl == pytest.approx([0.130812], rel=1e-5)


def test_another_best_token_is_a_difference_unless_the_reference_was_undecided():
    truth = torch.tensor([[2.0, 1.0], [1.00005, 1.0]])
    found = distance(truth, truth.flip(1))
    assert found.agrees == [False, False]
    assert found.near_tie == [False, True]


def test_a_summary_counts_positions_and_names_what_it_excused():
    one = Distance([True, True], [False, False], [0.0, 0.2])
    two = Distance([False, False], [True, False], [0.4, 1.0])
    assert summary([one, two]) == {
        "positions": 4,
        "agreement": 0.75,
        "near_ties_excused": 1,
        "whole_answers": 0.5,
        "kl_mean": 0.4,
        "kl_max": 1.0,
    }
