"""What the machine can do at most, measured in the same rounds as what it is compared with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

READ_BYTES = 256 << 20
"""Well beyond the last cache of the machines we know."""
GEMM_SIZE = 1024

Product = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True, slots=True)
class Probe:
    """Work of a known amount that is bound by one thing; amount / seconds is the limit."""

    amount: float
    run: Callable[[], None]


def read_probe() -> Probe:
    """Reads memory: the amount is in bytes. As many threads as torch has then."""
    data = torch.ones(READ_BYTES // 4)

    def run() -> None:
        data.sum()

    run()
    return Probe(READ_BYTES, run)


def gemm_probe(make: Callable[[torch.Tensor], Product]) -> Probe:
    """The product that `make(weight)` gives, on squares of 1,024: the amount is in FLOPs.

    A multiplication and an addition are two, whatever the number format.
    """
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(GEMM_SIZE, GEMM_SIZE, generator=generator)
    x = torch.randn(GEMM_SIZE, GEMM_SIZE, generator=generator)
    product = make(weight)

    @torch.inference_mode()
    def run() -> None:
        product(x)

    run()
    return Probe(2 * GEMM_SIZE**3, run)
