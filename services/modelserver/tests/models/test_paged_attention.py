"""Both paths of paged attention against the plain formula, at odd shapes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch

from services.modelserver.herd.engine.forward import Span
from services.modelserver.herd.kernels import native
from services.modelserver.herd.kernels.paged_attention_ref import paged_attention_ref
from services.modelserver.herd.kernels.paged_attention_torch import PagedAttention
from services.modelserver.herd.kernels.stack import attend

BLOCKS = 80
# (query tokens, context) of each span.
RAGGED = (
    *((1, 1), (1, 31), (1, 32), (1, 33), (5, 5), (7, 39), (33, 65), (1, 200), (2, 64)),
    *((1, 256), (1, 257), (17, 300), (1, 700), (40, 530)),
)
WINDOWS = (0, 1, 16, 32, 100, 300)

Attend = Callable[[Sequence[Span], torch.Tensor, torch.Tensor, torch.Tensor, int], torch.Tensor]


def spans_of(lengths: Sequence[tuple[int, int]]) -> list[Span]:
    """Spans over scattered blocks; sequences may share some, as prefixes do."""
    generator = torch.Generator().manual_seed(11)
    spans, start = [], 0
    for q_len, context in lengths:
        table = torch.randperm(BLOCKS, generator=generator)[: -(-context // 32)]
        spans.append(Span(start, q_len, context, table))
        start += q_len
    return spans


def branches_of(parent: int, lengths: Sequence[tuple[int, int]]) -> list[Span]:
    """Spans that share a parent's blocks and have their own after them."""
    spans, start, fresh = [], 0, parent // 32
    for q_len, context in lengths:
        own = -(-context // 32) - parent // 32
        table = torch.tensor([*range(parent // 32), *range(fresh, fresh + own)])
        spans.append(Span(start, q_len, context, table))
        start, fresh = start + q_len, fresh + own
    return spans


def pools(kv_heads: int, dim: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(13)
    keys = torch.randn(BLOCKS, kv_heads, dim, 32, generator=generator)
    return keys, torch.randn(BLOCKS, kv_heads, 32, dim, generator=generator)


def queries(spans: Sequence[Span], heads: int, dim: int) -> torch.Tensor:
    rows = sum(span.q_len for span in spans)
    return torch.randn(rows, heads, dim, generator=torch.Generator().manual_seed(17))


def by_torch(
    spans: Sequence[Span], q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, window: int
) -> torch.Tensor:
    return PagedAttention(spans, q.shape[-1] ** -0.5, window)(q, k, v)


def by_kernel(
    spans: Sequence[Span], q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, window: int
) -> torch.Tensor:
    library = native.native_library()
    assert library is not None, "g++ is part of the test machine"
    return attend(library, spans, q, k, v, q.shape[-1] ** -0.5, window, threads=2)


@pytest.fixture(params=[by_kernel, by_torch])
def attention(request: pytest.FixtureRequest) -> Attend:
    chosen: Attend = request.param
    return chosen


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize(
    ("heads", "kv_heads", "dim"),
    [(9, 3, 64), (8, 8, 64), (6, 1, 32), (4, 2, 128), (14, 2, 64), (10, 2, 96), (4, 1, 256)],
)
def test_equals_the_formula(
    heads: int, kv_heads: int, dim: int, window: int, attention: Attend
) -> None:
    spans = spans_of(RAGGED)
    query = queries(spans, heads, dim)
    keys, values = pools(kv_heads, dim)
    ours = attention(spans, query, keys, values, window)
    theirs = paged_attention_ref(query, keys, values, spans, dim**-0.5, window)
    torch.testing.assert_close(ours, theirs, atol=3e-6, rtol=2e-5)


def test_a_pool_in_float16_equals_the_formula_on_its_numbers(attention: Attend) -> None:
    spans = spans_of(RAGGED)
    query = queries(spans, 9, 64)
    keys, values = (pool.half() for pool in pools(3, 64))
    ours = attention(spans, query, keys, values, 0)
    theirs = paged_attention_ref(query, keys, values, spans, 64**-0.5)
    torch.testing.assert_close(ours, theirs, atol=3e-6, rtol=2e-5)


def test_large_scores_do_not_overflow(attention: Attend) -> None:
    spans = spans_of([(1, 100), (3, 70)])
    query = queries(spans, 4, 64) * 100
    keys, values = pools(2, 64)
    ours = attention(spans, query, keys, values, 0)
    theirs = paged_attention_ref(query, keys, values, spans, 64**-0.5)
    torch.testing.assert_close(ours, theirs, atol=2e-4, rtol=1e-4)


@pytest.mark.parametrize("parent", [512, 256, 96])
def test_branches_of_one_parent_equal_the_formula(parent: int, attention: Attend) -> None:
    spans = branches_of(parent, [(1, parent + 5 + 11 * i) for i in range(8)] + [(9, parent + 40)])
    query = queries(spans, 9, 64)
    keys, values = pools(3, 64)
    ours = attention(spans, query, keys, values, 0)
    theirs = paged_attention_ref(query, keys, values, spans, 64**-0.5)
    torch.testing.assert_close(ours, theirs, atol=3e-6, rtol=2e-5)


@pytest.mark.parametrize("window", [0, 100])
def test_a_row_has_the_same_bits_in_any_company_and_in_any_chunk(window: int) -> None:
    """Alone, with branches of the same parent, and as part of a chunk of its own sequence."""
    keys, values = pools(3, 64)
    spans = branches_of(512, [(1, 530 + 13 * i) for i in range(8)])
    query = queries(spans, 9, 64)
    together = by_kernel(spans, query, keys, values, window)
    for row, span in enumerate(spans):
        alone = Span(0, 1, span.context_len, span.block_table)
        own = query[row : row + 1]
        assert torch.equal(by_kernel([alone], own, keys, values, window)[0], together[row])
        chunk = Span(0, 20, span.context_len, span.block_table)
        filled = torch.cat([queries([chunk], 9, 64)[:19], own])
        assert torch.equal(by_kernel([chunk], filled, keys, values, window)[19], together[row])


def test_a_slot_beyond_a_context_is_not_seen_whatever_it_holds(attention: Attend) -> None:
    spans = spans_of([(1, 40), (3, 37)])
    query = queries(spans, 4, 64)
    keys, values = pools(2, 64)
    before = attention(spans, query, keys, values, 0)
    for span in spans:
        last = span.block_table[-1]
        keys[last, :, :, span.context_len % 32 :] = float("nan")
        values[last, :, span.context_len % 32 :] = float("nan")
    assert torch.equal(attention(spans, query, keys, values, 0), before)


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
