"""Memory in huge pages, where the system gives them.

A step streams all weights and much of the KV pool through the cores. In pages of 4 KiB the CPU's
own prefetching ends at each of them, and each costs a walk of the tables.
"""

from __future__ import annotations

import mmap
from typing import Final

import torch

CHUNK: Final = 64 << 20
HUGE_PAGE: Final = 2 << 20
ALIGNMENT: Final = 64


def huge(nbytes: int) -> torch.Tensor:
    """uint8 [nbytes] of zeros, from the start of a page. A page is the system's to give when it is
    first written, so what is never written costs nothing."""
    whole = max(1, -(-nbytes // HUGE_PAGE)) * HUGE_PAGE
    mapped = mmap.mmap(-1, whole, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        mapped.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(mapped, dtype=torch.uint8)[:nbytes]


class Arena:
    """Many pieces that live as long as each other, side by side."""

    def __init__(self) -> None:
        self._left = torch.empty(0, dtype=torch.uint8)

    def take(self, nbytes: int) -> torch.Tensor:
        """uint8 [nbytes], aligned to ALIGNMENT."""
        padded = -(-nbytes // ALIGNMENT) * ALIGNMENT
        if padded > CHUNK // 2:
            return huge(nbytes)
        if padded > len(self._left):
            self._left = huge(CHUNK)
        piece, self._left = self._left[:nbytes], self._left[padded:]
        return piece
