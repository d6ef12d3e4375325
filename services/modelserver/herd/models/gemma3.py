"""Gemma 3, its text model: norms before and after each part and on the heads, windows of two kinds
of layers with a rotary base each, scaled embeddings, GELU."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from services.modelserver.herd.kernels.rope import RopeConfig, inverse_frequencies
from services.modelserver.herd.models.config import ModelConfig
from services.modelserver.herd.models.decoder import Decoder, Fetch, LayerWeights
from services.modelserver.herd.models.errors import UnsupportedModel
from services.modelserver.herd.models.family import COMMON_GGUF, Family, Shapes, common_parts
from services.modelserver.herd.models.llama import decoder_with, part_of, plain_layer
from services.modelserver.herd.models.qwen3 import HEAD_NORMS
from services.modelserver.herd.models.rope_options import rope_from_hf

_PATTERN = 6
"""Every so many layers one sees all before it."""
_LOCAL_THETA = 10_000.0
_GLOBAL_THETA = 1_000_000.0
_LARGEST_LAYERS = 62
"""Of the 27B model, whose GGUF files do not say that its scores are scaled otherwise."""
_FULL, _SLIDING = "full_attention", "sliding_attention"
_NORMS = ("pre_feedforward_layernorm.weight", "post_feedforward_layernorm.weight")


def _decoder(config: ModelConfig, fetch: Fetch) -> Decoder:
    def factors(name: str) -> torch.Tensor:
        """Stored norms are distances from one."""
        found = fetch(name)
        return found + 1.0 if "norm" in name else found

    def layer(index: int) -> LayerWeights:
        get = part_of(factors, index)
        before_mlp, after_mlp = (get(name) for name in _NORMS)
        plain = plain_layer(config, get, index)
        return replace(
            plain,
            after_attention=plain.mlp_norm,  # Gemma's post_attention_layernorm is just that
            mlp_norm=before_mlp,
            after_mlp=after_mlp,
            query_norm=get("self_attn.q_norm.weight"),
            key_norm=get("self_attn.k_norm.weight"),
            rope=1 if config.window(index) else 0,
        )

    local = config.local_rope or RopeConfig(_LOCAL_THETA)
    ropes = (config.rope, local)
    return replace(
        decoder_with(config, factors, layer),
        frequencies=tuple(inverse_frequencies(each, config.head_dim) for each in ropes),
        embedding_scale=config.hidden**0.5,
        activation="gelu_tanh",
    )


def _parts(config: ModelConfig) -> Shapes:
    return (
        common_parts(config)
        | dict.fromkeys(_NORMS, (config.hidden,))
        | dict.fromkeys(HEAD_NORMS.values(), (config.head_dim,))
    )


def _hf_extras(raw: Mapping[str, Any]) -> dict[str, Any]:
    window, layers = int(raw["sliding_window"]), int(raw["num_hidden_layers"])
    every = int(raw.get("sliding_window_pattern") or raw.get("_sliding_window_pattern") or _PATTERN)
    types = raw.get("layer_types") or [
        _SLIDING if (index + 1) % every else _FULL for index in range(layers)
    ]
    # transformers 5 keeps the two rotary bases by the layers' type; before that by two names.
    by_type = raw.get("rope_parameters") or {}
    if _FULL in by_type:
        rope, local = (rope_from_hf(by_type[kind], 0.0) for kind in (_FULL, _SLIDING))
    else:
        theta = float(raw.get("rope_theta", _GLOBAL_THETA))
        rope = rope_from_hf(raw.get("rope_scaling") or {}, theta)
        local = RopeConfig(float(raw.get("rope_local_base_freq", _LOCAL_THETA)))
    return {
        "windows": tuple(window if each == _SLIDING else 0 for each in types),
        "rope": rope,
        "local_rope": local,
        "query_scale": float(raw.get("query_pre_attn_scalar", 256)) ** -0.5,
        "tied": bool(raw.get("tie_word_embeddings", True)),
    }


def _gguf_extras(fields: Mapping[str, Any]) -> dict[str, Any]:
    if fields.get("gemma3.final_logit_softcapping"):
        raise UnsupportedModel("final_logit_softcapping is not supported for gemma3 models")
    layers = int(fields["gemma3.block_count"])
    window = int(fields.get("gemma3.attention.sliding_window") or 0)
    every = int(fields.get("gemma3.attention.sliding_window_pattern", _PATTERN))
    extras: dict[str, Any] = {
        "windows": tuple(window if (index + 1) % every else 0 for index in range(layers)),
        "local_rope": RopeConfig(float(fields.get("gemma3.rope.freq_base_swa", _LOCAL_THETA))),
    }
    if layers == _LARGEST_LAYERS:
        heads = int(fields["gemma3.attention.head_count"])
        extras["query_scale"] = (int(fields["gemma3.embedding_length"]) / heads) ** -0.5
    return extras


GEMMA3 = Family(
    name="gemma3",
    hf_names=("Gemma3ForCausalLM", "gemma3_text"),
    decoder=_decoder,
    hf_activation="gelu_pytorch_tanh",
    refused=(
        "attention_bias",
        "attn_logit_softcapping",
        "final_logit_softcapping",
        "use_bidirectional_attention",
    ),
    parts=_parts,
    gguf_parts=COMMON_GGUF
    | HEAD_NORMS
    | {
        "post_attention_norm.weight": "post_attention_layernorm.weight",
        "ffn_norm.weight": _NORMS[0],
        "post_ffw_norm.weight": _NORMS[1],
    },
    gguf_norm_offset=1.0,
    hf_extras=_hf_extras,
    gguf_extras=_gguf_extras,
)
