"""Llama 2 and 3, and what is built like them: SmolLM2, and Mistral with its sliding window."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from services.modelserver.herd.kernels.rope import inverse_frequencies
from services.modelserver.herd.models.config import ModelConfig
from services.modelserver.herd.models.decoder import Decoder, Fetch, LayerWeights
from services.modelserver.herd.models.family import Family

Get = Callable[[str], torch.Tensor]


def part_of(fetch: Fetch, layer: int) -> Get:
    """Fetches a layer's tensors by their names within it."""
    return lambda part: fetch(f"model.layers.{layer}.{part}")


def plain_layer(config: ModelConfig, get: Get, layer: int) -> LayerWeights:
    """Pre-norm, rotary, grouped heads, gated MLP: nothing else."""
    return LayerWeights(
        attention_norm=get("input_layernorm.weight"),
        qkv=torch.cat([get(f"self_attn.{part}_proj.weight") for part in ("q", "k", "v")]),
        attention_out=get("self_attn.o_proj.weight"),
        mlp_norm=get("post_attention_layernorm.weight"),
        gate_up=torch.cat([get(f"mlp.{part}_proj.weight") for part in ("gate", "up")]),
        down=get("mlp.down_proj.weight"),
        window=config.window(layer),
    )


def decoder_with(
    config: ModelConfig, fetch: Fetch, layer: Callable[[int], LayerWeights]
) -> Decoder:
    """The common rest of a model around its layers."""
    return Decoder(
        config=config,
        embedding=fetch("model.embed_tokens.weight"),
        norm=fetch("model.norm.weight"),
        head=None if config.tied else fetch("lm_head.weight"),
        layer=layer,
        frequencies=(inverse_frequencies(config.rope, config.head_dim),),
        attention_scale=config.attention_scale,
    )


def _decoder(config: ModelConfig, fetch: Fetch) -> Decoder:
    return decoder_with(
        config, fetch, lambda index: plain_layer(config, part_of(fetch, index), index)
    )


def _hf_extras(raw: Mapping[str, Any]) -> dict[str, Any]:
    window = int(raw.get("sliding_window") or 0)
    return {"windows": (window,) * int(raw["num_hidden_layers"])} if window else {}


LLAMA = Family(
    name="llama",
    hf_names=("LlamaForCausalLM", "llama"),
    decoder=_decoder,
    refused=("attention_bias", "mlp_bias"),
    gguf_adjacent_pairs=True,
)

MISTRAL = Family(
    name="mistral",
    hf_names=("MistralForCausalLM", "mistral"),
    decoder=_decoder,
    hf_extras=_hf_extras,
)
