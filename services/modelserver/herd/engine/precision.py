"""Precisions of weights, and what each rounds.

Activations enter and leave a product in float32. float32: exact weights. float16: weights rounded
to float16, float32 sums. int8: weights and activations in int8, each group of 32 along the inputs
with its own scale, exact integer sums within a group, float32 over them. A group's scale depends on
its row alone, so in every precision a row's numbers do not depend on its neighbours.
"""

from __future__ import annotations

from typing import Literal

import torch

from services.modelserver.herd.kernels.packed import GROUP

Precision = Literal["float32", "float16", "int8"]
PRECISIONS: tuple[Precision, ...] = ("float32", "float16", "int8")
_STEPS = 127
_MOST_HALF = 65504.0


def choose_precision(asked: str) -> Precision:
    """``auto`` is float16 on a CPU: half the bytes a step has to read, at 2e-4 relative error."""
    if asked == "auto":
        return "float16"
    for known in PRECISIONS:
        if asked == known:
            return known
    raise ValueError(f"precision {asked} is not one of auto, {', '.join(PRECISIONS)}")


def kv_dtype(precision: Precision) -> torch.dtype:
    """Of the pool. float32 keeps greedy output exact; float16 halves the bytes that attention
    reads, at a distance below that of the weights."""
    return torch.float32 if precision == "float32" else torch.float16


def round_weight(weight: torch.Tensor, precision: Precision) -> torch.Tensor:
    """[out, in] float32, as the precision represents it. What is beyond float16 is its largest."""
    if precision == "float32":
        return weight
    if precision == "float16":
        return weight.clamp(-_MOST_HALF, _MOST_HALF).to(torch.float16).float()
    return _in_groups(weight)


def round_rows(x: torch.Tensor, precision: Precision) -> torch.Tensor:
    """Activations [rows, in] float32 as a product takes them."""
    return _in_groups(x) if precision == "int8" else x


def _in_groups(x: torch.Tensor) -> torch.Tensor:
    rows, inputs = x.shape
    whole = torch.nn.functional.pad(x, (0, -inputs % GROUP)).view(rows, -1, GROUP)
    most = whole.abs().amax(dim=-1, keepdim=True)
    inverse = torch.where(most > 0, _STEPS / most, 0.0)
    rounded = (whole * inverse).round() * (most / _STEPS)
    return rounded.view(rows, -1)[:, :inputs].contiguous()
