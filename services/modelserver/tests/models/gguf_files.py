"""Writes a tiny Hugging Face model as a GGUF file, the way llama.cpp's converter lays it out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import torch
from transformers import PreTrainedModel

_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
}
_GEMMA_NAMES = {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}


def write_gguf(
    path: Path,
    model: PreTrainedModel,
    *,
    architecture: str = "llama",
    quantize: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.F32,
    rope_factors: torch.Tensor | None = None,
    extra: str | None = None,
) -> Path:
    """``quantize`` is for matrices; norms stay float32. ``extra`` adds a tensor of that name."""
    writer = gguf.GGUFWriter(path, architecture)
    _write_metadata(writer, model)
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and model.config.tie_word_embeddings:
            continue
        rows = _permuted(name, tensor, model) if architecture == "llama" else tensor
        if architecture == "gemma3" and "norm" in name:
            rows = rows + 1.0
        kind = quantize if rows.ndim == 2 else gguf.GGMLQuantizationType.F32
        data = gguf.quants.quantize(rows.contiguous().numpy(), kind)
        writer.add_tensor(_gguf_name(name, architecture), data, raw_dtype=kind)
    if rope_factors is not None:
        writer.add_tensor("rope_freqs.weight", rope_factors.float().numpy())
    if extra is not None:
        writer.add_tensor(extra, torch.zeros(4, 4).numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _write_metadata(writer: gguf.GGUFWriter, model: PreTrainedModel) -> None:
    config: Any = model.config
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    rope = config.rope_parameters
    if "full_attention" in rope:
        writer.add_sliding_window(config.sliding_window)
        rope = rope["full_attention"]
    writer.add_rope_freq_base(rope["rope_theta"])
    if rope["rope_type"] == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(rope["factor"])
    writer.add_bos_token_id(config.bos_token_id)
    writer.add_eos_token_id(config.eos_token_id)


def _permuted(name: str, rows: torch.Tensor, model: PreTrainedModel) -> torch.Tensor:
    """q and k rows with rotary pairs adjacent: halves [2, dim/2] of each head, interleaved."""
    heads = {
        "q_proj": model.config.num_attention_heads,
        "k_proj": model.config.num_key_value_heads,
    }.get(name.split(".")[-2])
    if heads is None:
        return rows
    out, width = rows.shape
    return rows.view(heads, 2, out // heads // 2, width).swapaxes(1, 2).reshape(out, width)


def _gguf_name(name: str, architecture: str) -> str:
    names = _NAMES | (_GEMMA_NAMES if architecture == "gemma3" else {})
    stem, _, kind = name.rpartition(".")
    if stem.startswith("model.layers."):
        _, _, layer, part = stem.split(".", 3)
        return f"blk.{layer}.{names[part]}.{kind}"
    return f"{names[stem]}.{kind}"
