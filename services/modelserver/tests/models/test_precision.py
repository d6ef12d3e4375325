"""Linear layers: how near each precision is, and what a row may depend on."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from services.modelserver.herd.engine.precision import (
    PRECISIONS,
    Precision,
    choose_precision,
    make_linear,
)
from services.modelserver.herd.models.loader import load_model
from services.modelserver.tests.models.factories import (
    Driver,
    prompt_of,
    reference_logits,
    save_tiny,
)

# Relative error of a layer's output against float64, at most.
ERROR: dict[Precision, float] = {"float32": 1e-6, "float16": 4e-4, "int8": 0.025}


def weight_and_rows(rows: int = 40) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(23)
    weight = torch.randn(210, 96, generator=generator) * 0.05
    return weight, torch.randn(rows, 96, generator=generator)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_error_against_the_exact_product(precision: Precision) -> None:
    weight, x = weight_and_rows()
    exact = x.double() @ weight.double().T
    ours = make_linear(weight, precision)(x).double()
    assert ((ours - exact).norm() / exact.norm()).item() < ERROR[precision]


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("cut", [1, 7, 16, 33])
def test_a_rows_result_does_not_depend_on_its_batch(precision: Precision, cut: int) -> None:
    weight, x = weight_and_rows()
    linear = make_linear(weight, precision)
    together = linear(x)
    apart = torch.cat([linear(part) for part in x.split(cut)])
    if precision == "int8":
        assert torch.equal(apart, together)
    else:
        torch.testing.assert_close(apart, together, atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_neighbours_outlier_does_not_coarsen_a_row(precision: Precision) -> None:
    weight, x = weight_and_rows()
    linear = make_linear(weight, precision)
    before = linear(x)[1:]
    x[0] *= 1e4
    torch.testing.assert_close(linear(x)[1:], before, atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_row_of_zeros_and_an_empty_batch(precision: Precision) -> None:
    weight, _ = weight_and_rows()
    linear = make_linear(weight, precision)
    assert torch.equal(linear(torch.zeros(3, 96)), torch.zeros(3, 210))
    assert linear(torch.zeros(0, 96)).shape == (0, 210)


@pytest.mark.parametrize(("precision", "least"), [("float16", 0.9999), ("int8", 0.95)])
def test_a_whole_model_stays_near_the_reference(
    precision: str, least: float, tmp_path: Path
) -> None:
    reference = save_tiny(tmp_path, hidden_size=96, head_dim=16, intermediate_size=192)
    loaded = load_model(tmp_path, precision)
    assert loaded.precision == precision
    driver = Driver(loaded.model)
    tokens = prompt_of(70)
    ours = driver.forward([driver.sequence(tokens).chunk(70)])[0]
    theirs = reference_logits(reference, tokens)[-1]
    assert torch.nn.functional.cosine_similarity(ours, theirs, dim=0) > least


def test_auto_is_float16_and_an_unknown_precision_is_refused() -> None:
    assert choose_precision("auto") == "float16"
    with pytest.raises(ValueError, match="fp8"):
        choose_precision("fp8")


def test_signatures_differ_where_numbers_do(tmp_path: Path) -> None:
    save_tiny(tmp_path)
    loaded = [load_model(tmp_path, precision) for precision in PRECISIONS]
    assert len({model.numerics_signature for model in loaded}) == len(PRECISIONS)
    assert len({model.digests.root for model in loaded}) == 1
