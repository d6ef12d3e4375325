"""Both paths of paged attention against the plain formula, at odd shapes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from services.modelserver.herd.engine.forward import Span
from services.modelserver.herd.kernels import native
from services.modelserver.herd.kernels.paged_attention_cpu import PagedAttention
from services.modelserver.herd.kernels.paged_attention_ref import paged_attention_ref

BLOCKS = 40
# (query tokens, context) of each span.
RAGGED = ((1, 1), (1, 31), (1, 32), (1, 33), (5, 5), (7, 39), (33, 65), (1, 200), (2, 64))


def spans_of(lengths: Sequence[tuple[int, int]]) -> list[Span]:
    """Spans over scattered blocks; sequences may share some, as prefixes do."""
    generator = torch.Generator().manual_seed(11)
    spans, start = [], 0
    for q_len, context in lengths:
        table = torch.randperm(BLOCKS, generator=generator)[: -(-context // 32)]
        spans.append(Span(start, q_len, context, table))
        start += q_len
    return spans


def pools(kv_heads: int, dim: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(13)
    keys, values = torch.randn(2, BLOCKS, 32, kv_heads, dim, generator=generator).unbind()
    return keys, values


def queries(spans: Sequence[Span], heads: int, kv_heads: int, dim: int) -> torch.Tensor:
    """Strided as in the model: a view into the fused q, k, v."""
    rows = sum(span.q_len for span in spans)
    generator = torch.Generator().manual_seed(17)
    return torch.randn(rows, heads + 2 * kv_heads, dim, generator=generator)[:, :heads]


@pytest.fixture(params=[True, False], ids=["native", "torch"])
def use_native(request: pytest.FixtureRequest) -> bool:
    if request.param:
        assert native.native_library() is not None, "g++ is part of the test machine"
    return bool(request.param)


@pytest.mark.parametrize(
    ("heads", "kv_heads", "dim"),
    [(9, 3, 64), (8, 8, 64), (6, 1, 16), (4, 2, 128), (14, 2, 64), (10, 2, 80), (16, 1, 6)],
)
def test_equals_the_formula(heads: int, kv_heads: int, dim: int, use_native: bool) -> None:
    spans = spans_of(RAGGED)
    query = queries(spans, heads, kv_heads, dim)
    keys, values = pools(kv_heads, dim)
    ours = PagedAttention(spans, keys, heads, native=use_native)(query, keys, values)
    theirs = paged_attention_ref(query, keys, values, spans)
    torch.testing.assert_close(ours, theirs, atol=2e-6, rtol=1e-5)


def test_large_scores_do_not_overflow(use_native: bool) -> None:
    spans = spans_of([(1, 100), (3, 70)])
    query = queries(spans, 4, 2, 64) * 100
    keys, values = pools(2, 64)
    ours = PagedAttention(spans, keys, 4, native=use_native)(query, keys, values)
    torch.testing.assert_close(
        ours, paged_attention_ref(query, keys, values, spans), atol=2e-4, rtol=1e-4
    )


def test_a_decoding_row_is_bit_identical_in_any_batch(use_native: bool) -> None:
    spans = spans_of([(1, 40 + 17 * i) for i in range(16)])
    query = queries(spans, 9, 3, 64)
    keys, values = pools(3, 64)
    together = PagedAttention(spans, keys, 9, native=use_native)(query, keys, values)
    for row, span in enumerate(spans):
        moved = [Span(0, 1, span.context_len, span.block_table)]
        alone = PagedAttention(moved, keys, 9, native=use_native)(
            query[row : row + 1], keys, values
        )
        assert torch.equal(alone[0], together[row])


@pytest.mark.parametrize("lengths", [(1, 33), (4, 50), (7, 7)])
def test_what_lies_behind_the_context_is_not_seen(
    lengths: tuple[int, int], use_native: bool
) -> None:
    (span,) = spans_of([lengths])
    query = queries([span], 4, 2, 64)
    keys, values = pools(2, 64)
    attend = PagedAttention([span], keys, 4, native=use_native)
    before = attend(query, keys, values)
    for pool in (keys, values):
        pool[span.block_table[-1], span.context_len % 32 :] = 1e6
    assert torch.equal(attend(query, keys, values), before)


class TestBuilding:
    def test_a_compiler_that_fails_leaves_nothing_behind(self, tmp_path: Path) -> None:
        with pytest.raises(OSError, match="false failed"):
            native.build("false", tmp_path / "k" / "herd.so")
        assert list((tmp_path / "k").iterdir()) == []

    def test_without_a_compiler_there_is_no_library(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PATH", "")
        assert native.load_native() is None

    def test_a_cache_that_cannot_be_written_is_no_error(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        (tmp_path / "file").write_text("in the way")
        monkeypatch.setenv("IMPALA_CACHE", str(tmp_path / "file"))
        assert native.load_native() is None
