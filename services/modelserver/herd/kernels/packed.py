"""Weight matrices as the C++ kernels read them (cpp/matrix.h): packed once, at loading."""

from __future__ import annotations

import ctypes
from typing import Final

import torch

from services.modelserver.herd.kernels.arena import Arena

KINDS: Final = {"float32": 0, "float16": 1, "int8": 2}
PANEL = 32
GROUP = 32
"""Inputs that share a scale in int8, of weights and of activations."""


class MatrixStruct(ctypes.Structure):
    """`Matrix` of cpp/matrix.h."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("scales", ctypes.c_void_p),
        ("bias", ctypes.c_void_p),
        ("kind", ctypes.c_int32),
        ("outputs", ctypes.c_int32),
        ("inputs", ctypes.c_int32),
        ("gated", ctypes.c_int32),
    )


class PackedMatrix:
    """A [out, in] float32 matrix in one of KINDS; `struct` is valid as long as this lives.

    gated: gate rows, then as many up rows; a product then gives activation(gate) * up.
    """

    def __init__(
        self,
        library: ctypes.CDLL,
        weight: torch.Tensor,
        precision: str,
        threads: int,
        arena: Arena,
        *,
        bias: torch.Tensor | None = None,
        gated: bool = False,
    ) -> None:
        self._library = library
        kind, (outputs, inputs) = KINDS[precision], weight.shape
        weight = weight.contiguous()
        assert weight.dtype == torch.float32
        self._data = arena.take(library.herd_packed_bytes(kind, outputs, inputs))
        self._scales = arena.take(library.herd_scale_bytes(kind, outputs, inputs))
        library.herd_pack(
            threads,
            kind,
            int(gated),
            weight.data_ptr(),
            outputs,
            inputs,
            self._data.data_ptr(),
            self._scales.data_ptr(),
        )
        self._bias = None if bias is None else _filled_up(bias, outputs)
        self.struct = MatrixStruct(
            self._data.data_ptr(),
            self._scales.data_ptr(),
            None if self._bias is None else self._bias.data_ptr(),
            kind,
            outputs,
            -(-inputs // GROUP) * GROUP if precision == "int8" else inputs,
            int(gated),
        )

    def times(self, x: torch.Tensor, threads: int, activation: int = 0) -> torch.Tensor:
        """x [rows, in] float32, `in` whole groups if int8 -> [rows, out], or half as many if gated.
        For tests: it starts threads."""
        assert x.is_contiguous() and x.shape[1] == self.struct.inputs
        out = torch.empty(len(x), self.struct.outputs // (2 if self.struct.gated else 1))
        struct = ctypes.byref(self.struct)
        self._library.herd_multiply(
            threads, struct, activation, x.data_ptr(), len(x), out.data_ptr()
        )
        return out

    @property
    def nbytes(self) -> int:
        return self._data.nbytes + self._scales.nbytes


def _filled_up(bias: torch.Tensor, outputs: int) -> torch.Tensor:
    assert bias.shape == (outputs,)
    whole = torch.zeros(-(-outputs // PANEL) * PANEL)
    whole[:outputs] = bias
    return whole
