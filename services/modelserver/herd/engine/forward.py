"""ForwardBatch: everything the model needs to know of one step, as flat tensors.

Tokens of all sequences lie one after another, a span for each sequence; decoding is a span of one
token. There is no padding.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
    positions: list[torch.Tensor] = []
    slots: list[torch.Tensor] = []
    spans: list[Span] = []
    sample_rows: list[int] = []
    for chunk in chunks:
        span = _span(chunk, q_start=len(tokens))
        at = torch.arange(chunk.start, span.context_len)
        positions.append(at)
        slots.append(span.block_table[at // BLOCK_TOKENS] * BLOCK_TOKENS + at % BLOCK_TOKENS)
        spans.append(span)
        tokens.extend(chunk.tokens)
        if chunk.sample:
            sample_rows.append(len(tokens) - 1)
    return ForwardBatch(
        tokens=torch.tensor(tokens),
        positions=torch.cat(positions),
        slots=torch.cat(slots),
        spans=tuple(spans),
        sample_rows=torch.tensor(sample_rows, dtype=torch.int64),
    )


def _span(chunk: ChunkLike, q_start: int) -> Span:
    if not chunk.tokens or chunk.start < 0:
        raise ValueError(f"a chunk of {len(chunk.tokens)} tokens at {chunk.start} is not one")
    context = chunk.start + len(chunk.tokens)
    needed = -(-context // BLOCK_TOKENS)
    if len(chunk.block_table) < needed:
        raise ValueError(
            f"{context} tokens of context need {needed} blocks, the table has "
            f"{len(chunk.block_table)}"
        )
    table = torch.tensor(chunk.block_table[:needed], dtype=torch.int64)
    return Span(q_start, len(chunk.tokens), context, table)
