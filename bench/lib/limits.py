"""What the machine can do at most, measured in the same rounds as what it is compared with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from services.modelserver.herd.kernels.arena import huge

READ_BYTES = 256 << 20
"""Well beyond the last cache of the machines we know."""
GEMM_SIZE = 1024


@dataclass(frozen=True, slots=True)
class Probe:
    """Work of a known amount that is bound by one thing; amount / seconds is the limit."""

    amount: float
    run: Callable[[], None]


def read_probe() -> Probe:
    """Reads memory in huge pages: the amount is in bytes. As many threads as torch has then."""
    data = huge(READ_BYTES).view(torch.float32).fill_(1.0)

    def run() -> None:
        data.sum()

    run()
    return Probe(READ_BYTES, run)


def float_probe() -> Probe:
    """torch's product of float32 squares of 1,024: the amount is in FLOPs.

    A multiplication and an addition are two, whatever the number format.
    """
    weight, x = torch.randn(2, GEMM_SIZE, GEMM_SIZE, generator=torch.Generator().manual_seed(0))
    return _product(lambda: torch.mm(x, weight))


def int8_probe() -> Probe:
    """The same in int8 with exact int32 sums, by what the CPU has for it."""
    generator = torch.Generator().manual_seed(0)
    shape = (2, GEMM_SIZE, GEMM_SIZE)
    weight, x = torch.randint(-127, 128, shape, dtype=torch.int8, generator=generator)
    return _product(lambda: torch._int_mm(x, weight))


def _product(multiply: Callable[[], object]) -> Probe:
    @torch.inference_mode()
    def run() -> None:
        multiply()

    run()
    return Probe(2 * GEMM_SIZE**3, run)
