"""What a family of models is: its names, its tensors, the options it knows, and its decoder.

A family's own file (llama.py, qwen2.py, ...) says what differs from the common form below;
families.py lists them all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from services.modelserver.herd.models.config import ModelConfig
from services.modelserver.herd.models.decoder import Decoder, Fetch

Shape = tuple[int, ...]
Shapes = dict[str, Shape]

COMMON_GGUF = {
    "attn_norm.weight": "input_layernorm.weight",
    "attn_q.weight": "self_attn.q_proj.weight",
    "attn_k.weight": "self_attn.k_proj.weight",
    "attn_v.weight": "self_attn.v_proj.weight",
    "attn_output.weight": "self_attn.o_proj.weight",
    "ffn_norm.weight": "post_attention_layernorm.weight",
    "ffn_gate.weight": "mlp.gate_proj.weight",
    "ffn_up.weight": "mlp.up_proj.weight",
    "ffn_down.weight": "mlp.down_proj.weight",
}
"""llama.cpp's name of a layer's tensor -> Hugging Face's, as most families have them."""


def common_parts(config: ModelConfig) -> Shapes:
    """The tensors of a layer that every family has."""
    hidden, inner = config.hidden, config.intermediate
    return {
        "input_layernorm.weight": (hidden,),
        "post_attention_layernorm.weight": (hidden,),
        "self_attn.q_proj.weight": (config.q_size, hidden),
        "self_attn.k_proj.weight": (config.kv_size, hidden),
        "self_attn.v_proj.weight": (config.kv_size, hidden),
        "self_attn.o_proj.weight": (hidden, config.q_size),
        "mlp.gate_proj.weight": (inner, hidden),
        "mlp.up_proj.weight": (inner, hidden),
        "mlp.down_proj.weight": (hidden, inner),
    }


def no_extras(_: Mapping[str, Any]) -> dict[str, Any]:
    return {}


@dataclass(frozen=True, slots=True)
class Family:
    """hf_extras and gguf_extras give what a file's metadata says beyond the common fields, as
    fields of ModelConfig. They raise UnsupportedModel for an option that would change the output
    and has no code here."""

    name: str
    """In ModelConfig.architecture, and `general.architecture` of GGUF files."""
    hf_names: tuple[str, ...]
    """`architectures` and `model_type` of Hugging Face's config.json."""
    decoder: Callable[[ModelConfig, Fetch], Decoder]
    hf_activation: str = "silu"
    refused: tuple[str, ...] = ()
    """Options of config.json that must not be set."""
    parts: Callable[[ModelConfig], Shapes] = common_parts
    gguf_parts: Mapping[str, str] = field(default_factory=lambda: COMMON_GGUF)
    gguf_adjacent_pairs: bool = False
    """GGUF files have query and key rows with rotary pairs adjacent."""
    gguf_norm_offset: float = 0.0
    """What GGUF files have added to the norms' stored factors."""
    hf_extras: Callable[[Mapping[str, Any]], dict[str, Any]] = no_extras
    gguf_extras: Callable[[Mapping[str, Any]], dict[str, Any]] = no_extras

    def shapes(self, config: ModelConfig) -> Shapes:
        """Canonical name -> shape of every tensor of a model."""
        shapes: Shapes = {
            "model.embed_tokens.weight": (config.vocab, config.hidden),
            "model.norm.weight": (config.hidden,),
        }
        if not config.tied:
            shapes["lm_head.weight"] = (config.vocab, config.hidden)
        parts = self.parts(config)
        for layer in range(config.layers):
            for part, shape in parts.items():
                shapes[f"model.layers.{layer}.{part}"] = shape
        return shapes
