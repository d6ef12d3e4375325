"""Linear layers by weight precision.

Activations enter and leave in float32 in every precision. What each row may depend on:

float32   exact weights; a row differs by rounding only (about 1e-6) with the batch around it.
float16   fbgemm, weights rounded to float16, float32 sums; rows likewise near.
int8      weights int8 per output channel, activations int8 with **one scale per row**. torch's
          own dynamic int8 takes one scale for the whole batch, so an outlier in one request would
          change another's tokens; here a row's result is bit-identical in any batch.
"""

from __future__ import annotations

import warnings
from typing import Literal, Protocol

import torch
import torch.nn.functional as F

Precision = Literal["float32", "float16", "int8"]
PRECISIONS: tuple[Precision, ...] = ("float32", "float16", "int8")

# fbgemm adds pairs of products in 16 bits where the CPU has no VNNI. 63 steps either side keep
# 2 * 127 * 127 below 2**15, so that no CPU saturates and all give the same numbers.
_STEPS = 63
_ZERO_POINT = 64


class Linear(Protocol):
    """x [rows, in] float32 -> [rows, out] float32. No bias."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor: ...


def choose_precision(asked: str) -> Precision:
    """``auto`` is float16 on a CPU: half the bytes a step has to read, at 2e-4 relative error."""
    if asked == "auto":
        return "float16"
    for known in PRECISIONS:
        if asked == known:
            return known
    raise ValueError(f"precision {asked} is not one of auto, {', '.join(PRECISIONS)}")


def make_linear(weight: torch.Tensor, precision: Precision) -> Linear:
    """A Linear over ``weight`` [out, in] float32. Only float32 keeps the tensor itself."""
    if precision == "float32":
        return Float32Linear(weight)
    if precision == "float16":
        return Float16Linear(weight)
    return Int8Linear(weight)


class Float32Linear:
    """The reference: F.linear."""

    def __init__(self, weight: torch.Tensor) -> None:
        self.weight = weight.contiguous()

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self.weight)


class Float16Linear:
    """fbgemm's float16-weight GEMM, weights packed once."""

    def __init__(self, weight: torch.Tensor) -> None:
        # Beyond float16's range a weight would become infinite; fbgemm clips it instead.
        self._packed = torch.ops.quantized.linear_prepack_fp16(weight.contiguous(), None)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = torch.ops.quantized.linear_dynamic_fp16(x, self._packed)
        return out


class Int8Linear:
    """int8 weights per channel, int8 activations per row, exact int32 sums."""

    def __init__(self, weight: torch.Tensor) -> None:
        scales = (weight.abs().amax(dim=1) / 127).clamp_min(1e-12).to(torch.float64)
        zeros = torch.zeros(weight.shape[0], dtype=torch.int64)
        with warnings.catch_warnings():  # torch 2.13 says these operators will move; we pin it
            warnings.filterwarnings("ignore", message=".*quantize_per_channel")
            quantized = torch.quantize_per_channel(weight, scales, zeros, 0, torch.qint8)
        self._packed = torch.ops.quantized.linear_prepack(quantized, None)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        largest = x.abs().amax(dim=1, keepdim=True).clamp_min(1e-12)
        out: torch.Tensor = torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32(
            x / largest, 1.0 / _STEPS, _ZERO_POINT, self._packed
        )
        return out.mul_(largest)
