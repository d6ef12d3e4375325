"""Qwen2 and Qwen2.5: Llama with biases on queries, keys and values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from services.modelserver.herd.models.config import ModelConfig
from services.modelserver.herd.models.decoder import Decoder, Fetch, LayerWeights
from services.modelserver.herd.models.family import COMMON_GGUF, Family, Shapes, common_parts
from services.modelserver.herd.models.llama import decoder_with, part_of, plain_layer

_BIASES = ("q", "k", "v")


def _decoder(config: ModelConfig, fetch: Fetch) -> Decoder:
    def layer(index: int) -> LayerWeights:
        get = part_of(fetch, index)
        biases = [get(f"self_attn.{part}_proj.bias") for part in _BIASES]
        return replace(plain_layer(config, get, index), qkv_bias=torch.cat(biases))

    return decoder_with(config, fetch, layer)


def _parts(config: ModelConfig) -> Shapes:
    biases = zip(_BIASES, (config.q_size, config.kv_size, config.kv_size), strict=True)
    return common_parts(config) | {f"self_attn.{part}_proj.bias": (size,) for part, size in biases}


def windows_of(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Qwen's windows: in the upper layers, if at all."""
    window = int(raw.get("sliding_window") or 0)
    if not window or not raw.get("use_sliding_window"):
        return {}
    layers = int(raw["num_hidden_layers"])
    first = int(raw.get("max_window_layers", layers))
    types = raw.get("layer_types") or [
        "sliding_attention" if index >= first else "full_attention" for index in range(layers)
    ]
    return {"windows": tuple(window if each == "sliding_attention" else 0 for each in types)}


QWEN2 = Family(
    name="qwen2",
    hf_names=("Qwen2ForCausalLM", "qwen2"),
    decoder=_decoder,
    parts=_parts,
    gguf_parts=COMMON_GGUF
    | {f"attn_{part}.bias": f"self_attn.{part}_proj.bias" for part in _BIASES},
    hf_extras=windows_of,
)
