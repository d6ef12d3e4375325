"""ForwardBatch: everything the model needs to know of one step, as flat tensors.

Tokens of all sequences lie one after another, a span for each sequence; decoding is a span of one
token. There is no padding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from libs.hashing import BLOCK_TOKENS

Checkpoint = Callable[[], None]
"""Called between layers; may raise to give the step up."""


def go_on() -> None:
    """The checkpoint that never interrupts."""


@dataclass(frozen=True, slots=True)
class Span:
    """A sequence's share of the batch.

    Rows ``q_start`` to ``q_start + q_len`` are the tokens at positions ``context_len - q_len`` to
    ``context_len``; keys and values of positions 0 to ``context_len`` lie in ``block_table``
    (LongTensor, exactly as many blocks as that needs), once this step has written its own.
    """

    q_start: int
    q_len: int
    context_len: int
    block_table: torch.Tensor


@dataclass(frozen=True, slots=True)
class ForwardBatch:
    """``tokens``, ``positions``, ``slots`` are LongTensor[T]; ``slots`` says where KV is written.

    ``sample_rows`` is LongTensor[S]: the rows whose logits are wanted, in the order of the chunks.
    """

    tokens: torch.Tensor
    positions: torch.Tensor
    slots: torch.Tensor
    spans: tuple[Span, ...]
    sample_rows: torch.Tensor


@dataclass(frozen=True, slots=True)
class Scored:
    """What a pass gives for the S sample rows of a batch.

    ``logits`` float32 [S, vocab]; ``best`` LongTensor [S], the first of each row's largest.
    ``finite``: whether these and all keys and values that the batch wrote are numbers (a logit may
    be -inf, unless all are).
    """

    logits: torch.Tensor
    best: torch.Tensor
    finite: bool


class ChunkLike(Protocol):
    """Tokens of one sequence from position ``start``; earlier positions are already in the pool.

    ``block_table`` covers positions 0 to ``start + len(tokens)`` (more blocks are ignored).
    ``sample`` asks for the logits of the last token. The batcher's Chunk is one.
    """

    @property
    def tokens(self) -> Sequence[int]: ...
    @property
    def start(self) -> int: ...
    @property
    def block_table(self) -> Sequence[int]: ...
    @property
    def sample(self) -> bool: ...


def build_batch(chunks: Sequence[ChunkLike]) -> ForwardBatch:
    """Lay the chunks out. ValueError for an empty batch or chunk, or a table that is too short."""
    if not chunks:
        raise ValueError("a forward batch needs at least one chunk")
    tokens: list[int] = []
    positions: list[int] = []
    slots: list[int] = []
    blocks: list[int] = []
    places: list[tuple[int, int, int, int]] = []
    sample_rows: list[int] = []
    for chunk in chunks:
        context = chunk.start + len(chunk.tokens)
        table = _table(chunk, context)
        places.append((len(tokens), len(chunk.tokens), context, len(blocks)))
        tokens += chunk.tokens
        positions += range(chunk.start, context)
        slots += _slots(table, chunk.start, context)
        blocks += table
        if chunk.sample:
            sample_rows.append(len(tokens) - 1)
    # Few tensors, made at once: each costs as much as a hundred numbers in it.
    tables = torch.tensor(blocks)
    ends = [*(first for *_, first in places[1:]), len(blocks)]
    return ForwardBatch(
        tokens=torch.tensor(tokens),
        positions=torch.tensor(positions),
        slots=torch.tensor(slots),
        spans=tuple(
            Span(row, count, context, tables[first:end])
            for (row, count, context, first), end in zip(places, ends, strict=True)
        ),
        sample_rows=torch.tensor(sample_rows, dtype=torch.int64),
    )


def _table(chunk: ChunkLike, context: int) -> Sequence[int]:
    """The blocks that the context needs."""
    if not chunk.tokens or chunk.start < 0:
        raise ValueError(f"a chunk of {len(chunk.tokens)} tokens at {chunk.start} is not one")
    needed = -(-context // BLOCK_TOKENS)
    if len(chunk.block_table) < needed:
        raise ValueError(
            f"{context} tokens of context need {needed} blocks, the table has "
            f"{len(chunk.block_table)}"
        )
    return chunk.block_table[:needed]


def _slots(table: Sequence[int], start: int, end: int) -> Iterator[int]:
    """Where positions `start` to `end` lie, block by block."""
    while start < end:
        block, offset = divmod(start, BLOCK_TOKENS)
        count = min(end - start, BLOCK_TOKENS - offset)
        first = table[block] * BLOCK_TOKENS + offset
        yield from range(first, first + count)
        start += count
