"""What every family of decoders is made of: its layers' weights and a few constants.

    x = embedding[tokens] * embedding_scale
    per layer, each part of norm(x):
        x += after_attention(attention_out(attention(rope(query_norm(q)), rope(key_norm(k)), v)))
        x += after_mlp(down(activation(gate) * up))
    logits = head(norm(x[sample_rows]))

where the norms but the first of each part are there in some families only. A family's own file says
which, and where its tensors lie; the passes over it (`engine/torch_pass.py` and the compiled
`engine/native_pass.py`) know no family.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch

from services.modelserver.herd.models.config import ModelConfig

Fetch = Callable[[str], torch.Tensor]
"""Gives the float32 tensor of a canonical name (see models/source.py)."""

Activation = Literal["silu", "gelu_tanh"]


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One layer, all float32. Matrices are [out, in], norms their plain factors."""

    attention_norm: torch.Tensor
    qkv: torch.Tensor
    """Rows of all query heads, then key heads, then value heads."""
    attention_out: torch.Tensor
    mlp_norm: torch.Tensor
    gate_up: torch.Tensor
    """Rows of gate, then as many of up."""
    down: torch.Tensor
    qkv_bias: torch.Tensor | None = None
    query_norm: torch.Tensor | None = None
    """[head_dim], of each head before it is rotated."""
    key_norm: torch.Tensor | None = None
    after_attention: torch.Tensor | None = None
    after_mlp: torch.Tensor | None = None
    rope: int = 0
    """Index into the decoder's frequencies."""
    window: int = 0
    """A position sees itself and the window - 1 before it; 0: all before it."""


@dataclass(frozen=True, slots=True)
class Decoder:
    """A family's model, its layers read when they are asked for."""

    config: ModelConfig
    embedding: torch.Tensor
    """[vocab, hidden]"""
    norm: torch.Tensor
    head: torch.Tensor | None
    """[vocab, hidden]; None: the embedding."""
    layer: Callable[[int], LayerWeights]
    frequencies: tuple[torch.Tensor, ...]
    """Rotary inverse frequencies, each [head_dim / 2]."""
    attention_scale: float
    embedding_scale: float = 1.0
    activation: Activation = "silu"
