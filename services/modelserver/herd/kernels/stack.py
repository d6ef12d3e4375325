"""The host side of cpp/stack.cpp: a model's whole pass over a step's tokens."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import torch

from services.modelserver.herd.kernels.packed import MatrixStruct, PackedMatrix

ACTIVATIONS: Final = {"silu": 0, "gelu_tanh": 1}
MAX_FREQUENCIES = 2
PARTS: Final = ("embedding", "norms", "products", "placing", "attention", "rounding", "head")
"""What a pass spends its time on; placing: rotary embedding and writing to the pool."""
HEAD_DIMS = 32
"""Head sizes are a multiple of this."""

Pools = Sequence[tuple[torch.Tensor, torch.Tensor]]

_P, _I, _L, _F = ctypes.c_void_p, ctypes.c_int32, ctypes.c_int64, ctypes.c_float


class _LayerStruct(ctypes.Structure):
    _fields_ = (
        ("qkv", MatrixStruct),
        ("attention_out", MatrixStruct),
        ("gate_up", MatrixStruct),
        ("down", MatrixStruct),
        ("attention_norm", _P),
        ("mlp_norm", _P),
        ("after_attention", _P),
        ("after_mlp", _P),
        ("query_norm", _P),
        ("key_norm", _P),
        ("rope", _I),
        ("window", _I),
    )


class _ModelStruct(ctypes.Structure):
    _fields_ = (
        ("layers", _P),
        ("norm", _P),
        ("head", MatrixStruct),
        ("embedding", _P),
        ("frequencies", _P * MAX_FREQUENCIES),
        *((name, _I) for name in ("count", "hidden", "heads", "kv_heads", "dim")),
        *((name, _I) for name in ("intermediate", "vocab", "activation")),
        *((name, _F) for name in ("eps", "attention_scale", "embedding_scale")),
    )


class _SpanStruct(ctypes.Structure):
    _fields_ = (("row", _L), ("count", _L), ("context", _L), ("table", _P))


class _PoolStruct(ctypes.Structure):
    _fields_ = (("keys", _P), ("values", _P), ("half", _I))


class _BatchStruct(ctypes.Structure):
    _fields_ = (
        *((name, _P) for name in ("tokens", "positions", "slots", "spans", "sample_rows", "pools")),
        *((name, _L) for name in ("rows", "span_count", "samples")),
        *((name, _P) for name in ("logits", "best", "states", "finite")),
    )


class SpanLike(Protocol):
    """The fields of a batch's span (see engine/forward.py)."""

    @property
    def q_start(self) -> int: ...
    @property
    def q_len(self) -> int: ...
    @property
    def context_len(self) -> int: ...
    @property
    def block_table(self) -> torch.Tensor: ...


class BatchLike(Protocol):
    """The fields of a ForwardBatch (see engine/forward.py)."""

    @property
    def tokens(self) -> torch.Tensor: ...
    @property
    def positions(self) -> torch.Tensor: ...
    @property
    def slots(self) -> torch.Tensor: ...
    @property
    def spans(self) -> Sequence[SpanLike]: ...
    @property
    def sample_rows(self) -> torch.Tensor: ...


@dataclass(frozen=True, slots=True)
class StackLayer:
    """One layer's packed weights; the norms are float32 and may be None but for the first two."""

    qkv: PackedMatrix
    attention_out: PackedMatrix
    gate_up: PackedMatrix
    down: PackedMatrix
    attention_norm: torch.Tensor
    mlp_norm: torch.Tensor
    after_attention: torch.Tensor | None
    after_mlp: torch.Tensor | None
    query_norm: torch.Tensor | None
    key_norm: torch.Tensor | None
    rope: int
    window: int


@dataclass(frozen=True, slots=True)
class StackShape:
    hidden: int
    heads: int
    kv_heads: int
    dim: int
    intermediate: int
    vocab: int
    activation: str
    eps: float
    attention_scale: float
    embedding_scale: float


class Stack:
    """A model's weights and a team of threads. One call at a time, from any thread.

    embedding: float16 [vocab, hidden]; None: the head's rows, which then is not int8.
    frequencies: rotary inverse frequencies, at most MAX_FREQUENCIES, each [dim / 2] float32.
    """

    def __init__(
        self,
        library: ctypes.CDLL,
        shape: StackShape,
        layers: Sequence[StackLayer],
        norm: torch.Tensor,
        head: PackedMatrix,
        embedding: torch.Tensor | None,
        frequencies: Sequence[torch.Tensor],
        threads: int,
    ) -> None:
        assert shape.dim % HEAD_DIMS == 0 and len(frequencies) <= MAX_FREQUENCIES
        assert embedding is None or embedding.dtype == torch.float16
        assert embedding is not None or head.struct.kind != 2
        self._shape, self._library, self._layers = shape, library, tuple(layers)
        self._kept = (norm, head, embedding, tuple(frequencies))
        structs = [_layer_struct(layer) for layer in layers]
        self._layer_structs = (_LayerStruct * len(structs))(*structs)
        pointers = [each.data_ptr() for each in frequencies]
        model = _ModelStruct(
            ctypes.addressof(self._layer_structs),
            norm.data_ptr(),
            head.struct,
            _pointer(embedding),
            (_P * MAX_FREQUENCIES)(*pointers),
            len(layers),
            shape.hidden,
            shape.heads,
            shape.kv_heads,
            shape.dim,
            shape.intermediate,
            shape.vocab,
            ACTIVATIONS[shape.activation],
            shape.eps,
            shape.attention_scale,
            shape.embedding_scale,
        )
        self._stack = library.herd_stack_new(ctypes.byref(model), threads)
        self._pools: tuple[Pools, ctypes.Array[_PoolStruct]] | None = None

    def __del__(self) -> None:
        if hasattr(self, "_stack"):
            self._library.herd_stack_delete(self._stack)

    @property
    def layers(self) -> int:
        return len(self._layers)

    def seconds(self) -> dict[str, float]:
        """Time of all passes so far by PARTS, as the calling thread sees it."""
        found = (ctypes.c_double * len(PARTS))()
        self._library.herd_stack_seconds(self._stack, found)
        return dict(zip(PARTS, found, strict=True))

    def begin(
        self,
        batch: BatchLike,
        pools: Pools,
        *,
        states: bool = False,
    ) -> Pass:
        """A pass over the batch, to be run layer by layer.

        pools: each layer's keys [blocks, kv_heads, dim, 32] and values [blocks, kv_heads, 32, dim].
        states: ask for what the head would be given, [samples, hidden], in place of logits.
        """
        if self._pools is None or self._pools[0] is not pools:
            self._pools = (
                pools,
                (_PoolStruct * len(pools))(*(_pool_struct(*each) for each in pools)),
            )
        return Pass(self._library, self._stack, self._shape, batch, self._pools[1], states)


class Pass:
    """`run` all layers in order; then `result`, [samples, vocab] or [samples, hidden], `best`, the
    first of each row's largest logits, and `finite`."""

    def __init__(
        self,
        library: ctypes.CDLL,
        stack: int,
        shape: StackShape,
        batch: BatchLike,
        pools: ctypes.Array[_PoolStruct],
        states: bool,
    ) -> None:
        self._library, self._stack, self._batch, self._pools = library, stack, batch, pools
        samples = len(batch.sample_rows)
        self.result = torch.empty(samples, shape.hidden if states else shape.vocab)
        self.best = torch.zeros(samples, dtype=torch.int64)
        self._finite = _I(1)
        self._spans = (_SpanStruct * len(batch.spans))(*map(_span_struct, batch.spans))
        self._struct = _BatchStruct(
            batch.tokens.data_ptr(),
            batch.positions.data_ptr(),
            batch.slots.data_ptr(),
            ctypes.addressof(self._spans),
            batch.sample_rows.data_ptr(),
            ctypes.addressof(pools),
            len(batch.tokens),
            len(batch.spans),
            samples,
            None if states else self.result.data_ptr(),
            self.best.data_ptr(),
            self.result.data_ptr() if states else None,
            ctypes.addressof(self._finite),
        )

    @property
    def finite(self) -> bool:
        """Whether the batch's keys and values and the result are numbers."""
        return bool(self._finite.value)

    def run(self, first: int, last: int) -> None:
        """Layers `first` to `last`, in C++ without the interpreter's lock."""
        self._library.herd_stack_run(self._stack, ctypes.byref(self._struct), first, last)


class _ShapeStruct(ctypes.Structure):
    _fields_ = (
        *((name, _I) for name in ("heads", "kv_heads", "dim", "window")),
        ("scale", _F),
    )


def attend(
    library: ctypes.CDLL,
    spans: Sequence[SpanLike],
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    scale: float,
    window: int,
    threads: int,
) -> torch.Tensor:
    """Attention alone, as PagedAttention has it. For tests: it starts threads."""
    query = query.contiguous()
    out = torch.empty_like(query)
    own = (_SpanStruct * len(spans))(*map(_span_struct, spans))
    shape = _ShapeStruct(query.shape[1], keys.shape[1], query.shape[2], window, scale)
    pool = _pool_struct(keys, values)
    library.herd_attend(
        threads,
        ctypes.addressof(own),
        len(spans),
        ctypes.byref(shape),
        ctypes.byref(pool),
        query.data_ptr(),
        out.data_ptr(),
    )
    return out


def _layer_struct(layer: StackLayer) -> _LayerStruct:
    return _LayerStruct(
        layer.qkv.struct,
        layer.attention_out.struct,
        layer.gate_up.struct,
        layer.down.struct,
        layer.attention_norm.data_ptr(),
        layer.mlp_norm.data_ptr(),
        _pointer(layer.after_attention),
        _pointer(layer.after_mlp),
        _pointer(layer.query_norm),
        _pointer(layer.key_norm),
        layer.rope,
        layer.window,
    )


def _span_struct(span: SpanLike) -> _SpanStruct:
    return _SpanStruct(span.q_start, span.q_len, span.context_len, span.block_table.data_ptr())


def _pool_struct(keys: torch.Tensor, values: torch.Tensor) -> _PoolStruct:
    assert keys.is_contiguous() and values.is_contiguous()
    return _PoolStruct(keys.data_ptr(), values.data_ptr(), int(keys.dtype == torch.float16))


def _pointer(tensor: torch.Tensor | None) -> int | None:
    if tensor is None:
        return None
    assert tensor.is_contiguous()
    return tensor.data_ptr()
