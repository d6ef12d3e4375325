"""Products of the compiled kernels: how near each precision is, and what a row may depend on."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from services.modelserver.herd.engine.precision import (
    PRECISIONS,
    Precision,
    choose_precision,
    round_rows,
    round_weight,
)
from services.modelserver.herd.kernels import native
from services.modelserver.herd.kernels.arena import Arena
from services.modelserver.herd.kernels.packed import PackedMatrix
from services.modelserver.herd.models.loader import load_model
from services.modelserver.tests.models.factories import (
    Driver,
    load_tiny,
    prompt_of,
    reference_logits,
    save_tiny,
)

# Relative error of a product against float64, at most.
ERROR: dict[Precision, float] = {"float32": 1e-6, "float16": 4e-4, "int8": 0.01}
ROWS = (1, 2, 3, 4, 5, 6, 7, 13, 14, 15, 16, 17, 29, 33, 64)


def weight_and_rows(
    rows: int = 40, outputs: int = 210, inputs: int = 96
) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(23)
    weight = torch.randn(outputs, inputs, generator=generator) * 0.05
    return weight, torch.randn(rows, inputs, generator=generator)


def packed(
    weight: torch.Tensor, precision: Precision, threads: int = 2, **more: object
) -> PackedMatrix:
    library = native.native_library()
    assert library is not None, "g++ is part of the test machine"
    return PackedMatrix(library, weight, precision, threads, Arena(), **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("precision", PRECISIONS)
def test_error_against_the_exact_product(precision: Precision) -> None:
    weight, x = weight_and_rows()
    exact = x.double() @ weight.double().T
    ours = packed(weight, precision).times(x, 2).double()
    assert ((ours - exact).norm() / exact.norm()).item() < ERROR[precision]


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize(("outputs", "inputs"), [(1, 32), (31, 64), (33, 320), (300, 576)])
def test_equals_torch_on_what_the_precision_rounds(
    precision: Precision, outputs: int, inputs: int
) -> None:
    weight, x = weight_and_rows(17, outputs, inputs)
    bias = torch.linspace(-1, 1, outputs)
    wanted = F.linear(round_rows(x, precision), round_weight(weight, precision), bias)
    ours = packed(weight, precision, bias=bias).times(x, 2)
    torch.testing.assert_close(ours, wanted, atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize(("activation", "act"), [(0, F.silu), (1, None)])
@pytest.mark.parametrize("width", [8, 40, 80, 96])
def test_gate_and_up_meet_in_the_product(
    precision: Precision, activation: int, act: object, width: int
) -> None:
    weight, x = weight_and_rows(9, 2 * width)
    both = F.linear(round_rows(x, precision), round_weight(weight, precision) * 4)
    gate, up = both.chunk(2, dim=-1)
    wanted = (F.silu(gate) if act else F.gelu(gate, approximate="tanh")) * up
    ours = packed(weight * 4, precision, gated=True).times(x, 2, activation)
    torch.testing.assert_close(ours, wanted, atol=4e-6, rtol=2e-5)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_a_row_has_the_same_bits_in_any_batch(precision: Precision, threads: int) -> None:
    weight, x = weight_and_rows(64, 200, 288)
    matrix = packed(weight, precision)
    alone = torch.cat([matrix.times(row[None].contiguous(), 1) for row in x])
    for rows in ROWS:
        assert torch.equal(matrix.times(x[:rows].contiguous(), threads), alone[:rows]), rows


@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_neighbours_outlier_does_not_change_a_row(precision: Precision) -> None:
    weight, x = weight_and_rows()
    matrix = packed(weight, precision)
    before = matrix.times(x, 2)[1:]
    x[0] *= 1e4
    assert torch.equal(matrix.times(x, 2)[1:], before)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_what_is_no_number_stays_none_in_its_row_alone(precision: Precision, bad: float) -> None:
    weight, x = weight_and_rows(20)
    matrix = packed(weight, precision)
    before = matrix.times(x, 2)
    x[7, 50] = bad
    after = matrix.times(x, 2)
    assert not after[7].isfinite().any()
    kept = [row for row in range(20) if row != 7]
    assert torch.equal(after[kept], before[kept])


@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_row_of_zeros_and_an_empty_batch(precision: Precision) -> None:
    weight, _ = weight_and_rows()
    matrix = packed(weight, precision)
    assert torch.equal(matrix.times(torch.zeros(3, 96), 2), torch.zeros(3, 210))
    assert matrix.times(torch.zeros(0, 96), 2).shape == (0, 210)


def test_weights_beyond_float16_become_its_largest() -> None:
    weight = torch.tensor([[1e6, -1e6] + [0.0] * 30])
    x = torch.eye(2, 32)
    assert packed(weight, "float16").times(x, 1).flatten().tolist() == [65504.0, -65504.0]


@pytest.mark.parametrize("native", [True, False], ids=["native", "torch"])
@pytest.mark.parametrize(("precision", "least"), [("float16", 0.9999), ("int8", 0.99)])
def test_a_whole_model_stays_near_the_reference(
    precision: str, least: float, native: bool, tmp_path: Path
) -> None:
    reference = save_tiny(tmp_path, hidden_size=96, intermediate_size=192)
    driver = Driver(load_tiny(tmp_path, precision, native=native))
    assert driver.model.precision == precision
    tokens = prompt_of(70)
    ours = driver.forward([driver.sequence(tokens).chunk(70)])[0]
    theirs = reference_logits(reference, tokens)[-1]
    assert torch.nn.functional.cosine_similarity(ours, theirs, dim=0) > least


@pytest.mark.slow
def test_a_cpu_with_shorter_vectors_gives_the_same_bits(tmp_path: Path) -> None:
    """Integer sums are exact, and the chains of float sums the same."""
    compiler = shutil.which("g++")
    assert compiler is not None, "g++ is part of the test machine"
    native.build(compiler, tmp_path / "v3.so", "x86-64-v3")
    older = native.open_library(tmp_path / "v3.so")
    weight, x = weight_and_rows(33, 200, 288)
    for precision in PRECISIONS:
        theirs = PackedMatrix(older, weight, precision, 2, Arena()).times(x, 2)
        assert torch.equal(packed(weight, precision).times(x, 2), theirs), precision


def test_auto_is_float16_and_an_unknown_precision_is_refused() -> None:
    assert choose_precision("auto") == "float16"
    with pytest.raises(ValueError, match="fp8"):
        choose_precision("fp8")


def test_signatures_differ_where_numbers_do(tmp_path: Path) -> None:
    save_tiny(tmp_path)
    loaded = [load_model(tmp_path, precision) for precision in PRECISIONS]
    assert len({model.numerics_signature for model in loaded}) == len(PRECISIONS)
    assert len({model.digests.root for model in loaded}) == 1
