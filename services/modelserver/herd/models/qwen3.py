"""Qwen3: Llama with a norm on each head of queries and keys."""

from __future__ import annotations

from dataclasses import replace

from services.modelserver.herd.models.config import ModelConfig
from services.modelserver.herd.models.decoder import Decoder, Fetch, LayerWeights
from services.modelserver.herd.models.family import COMMON_GGUF, Family, Shapes, common_parts
from services.modelserver.herd.models.llama import decoder_with, part_of, plain_layer
from services.modelserver.herd.models.qwen2 import windows_of

HEAD_NORMS = {
    "attn_q_norm.weight": "self_attn.q_norm.weight",
    "attn_k_norm.weight": "self_attn.k_norm.weight",
}
"""By their names in GGUF files."""


def _decoder(config: ModelConfig, fetch: Fetch) -> Decoder:
    def layer(index: int) -> LayerWeights:
        get = part_of(fetch, index)
        return replace(
            plain_layer(config, get, index),
            query_norm=get("self_attn.q_norm.weight"),
            key_norm=get("self_attn.k_norm.weight"),
        )

    return decoder_with(config, fetch, layer)


def _parts(config: ModelConfig) -> Shapes:
    return common_parts(config) | dict.fromkeys(HEAD_NORMS.values(), (config.head_dim,))


QWEN3 = Family(
    name="qwen3",
    hf_names=("Qwen3ForCausalLM", "qwen3"),
    decoder=_decoder,
    refused=("attention_bias",),
    parts=_parts,
    gguf_parts=COMMON_GGUF | HEAD_NORMS,
    hf_extras=windows_of,
)
