"""Memory for weights and KV: zeros, aligned, apart from each other, and costing what is written."""

from __future__ import annotations

import os
import subprocess
import sys

import torch

from services.modelserver.herd.kernels.arena import ALIGNMENT, CHUNK, Arena, huge


def test_pieces_are_aligned_zeros_that_do_not_overlap() -> None:
    arena = Arena()
    sizes = [1, 64, 65, 1000, CHUNK // 2, CHUNK // 2 + 1, CHUNK, 7, 0, CHUNK // 3, CHUNK // 3]
    pieces = [arena.take(size) for size in sizes]
    for number, (piece, size) in enumerate(zip(pieces, sizes, strict=True)):
        assert (len(piece), int(piece.sum())) == (size, 0)
        assert piece.data_ptr() % ALIGNMENT == 0
        piece.fill_(number + 1)
    for number, piece in enumerate(pieces):
        assert bool((piece == number + 1).all())


def test_a_piece_outlives_its_arena() -> None:
    piece = Arena().take(1000)
    piece.fill_(3)
    assert int(piece.sum()) == 3000


def test_what_is_never_written_takes_no_memory() -> None:
    """In a process of its own, whose peak nobody else moves."""
    code = (
        "import resource, sys\n"
        "from services.modelserver.herd.kernels.arena import huge\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "pool = huge(4 << 30)\n"
        "pool[: 10 << 20].fill_(1)\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=os.environ, check=True
    )
    assert int(done.stdout) < 40 << 10  # KiB


def test_a_view_of_another_type_can_be_had() -> None:
    assert huge(64).view(torch.float16).view(2, 16).shape == (2, 16)
