"""A model's config from the files that come with its weights."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from services.modelserver.herd.models.config import ModelConfig
from services.modelserver.herd.models.errors import BadWeights, ModelNotFound, UnsupportedModel
from services.modelserver.herd.models.families import family_named
from services.modelserver.herd.models.family import Family
from services.modelserver.herd.models.rope_options import (
    DEFAULT_THETA,
    rope_from_gguf,
    rope_from_hf,
)


def config_from_folder(folder: Path) -> ModelConfig:
    """Read ``config.json`` (and ``generation_config.json``, whose end tokens win)."""
    path = folder / "config.json"
    if not path.is_file():
        raise ModelNotFound(f"{folder} has no config.json: not a model folder")
    raw = _read_json(path)
    generation = folder / "generation_config.json"
    extra = _read_json(generation) if generation.is_file() else {}
    return config_from_hf(raw, extra)


def config_from_hf(raw: Mapping[str, Any], generation: Mapping[str, Any] = {}) -> ModelConfig:
    """From the mappings of ``config.json`` and ``generation_config.json``.

    Raises UnsupportedModel for an architecture or an option without code here, BadWeights for a
    missing field.
    """
    named = raw.get("architectures") or [raw.get("model_type", "none given")]
    family = family_named(str(named[0]))
    _refuse_options(raw, family)
    try:
        heads, hidden = int(raw["num_attention_heads"]), int(raw["hidden_size"])
        extras = family.hf_extras(raw)
        if "rope" not in extras:
            scaling = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
            extras["rope"] = rope_from_hf(scaling, float(raw.get("rope_theta", DEFAULT_THETA)))
        common = {
            "layers": int(raw["num_hidden_layers"]),
            "hidden": hidden,
            "heads": heads,
            "kv_heads": int(raw.get("num_key_value_heads") or heads),
            "head_dim": int(raw.get("head_dim") or hidden // heads),
            "intermediate": int(raw["intermediate_size"]),
            "vocab": int(raw["vocab_size"]),
            "norm_eps": float(raw.get("rms_norm_eps", 1e-6)),
            "tied": bool(raw.get("tie_word_embeddings", False)),
            "max_context": int(raw.get("max_position_embeddings", 2048)),
            "eos_ids": _ids(generation.get("eos_token_id", raw.get("eos_token_id"))),
            "bos_id": next(iter(_ids(raw.get("bos_token_id"))), None),
        }
    except KeyError as missing:
        raise BadWeights(f"config.json has no {missing.args[0]}") from None
    return ModelConfig(**{"architecture": family.name, **common, **extras})


def config_from_gguf(
    fields: Mapping[str, Any],
    *,
    vocab: int,
    tied: bool,
    rope_factors: Sequence[float] = (),
) -> ModelConfig:
    """From a GGUF file's metadata.

    ``vocab`` and ``tied`` come from the tensors (the rows of the embedding; whether an output
    matrix exists), ``rope_factors`` from its ``rope_freqs`` tensor when it has one.
    """
    family = family_named(str(fields.get("general.architecture", "none given")))
    _check_gguf_options(fields, family.name)

    def number(key: str, default: Any = None) -> Any:
        value = fields.get(f"{family.name}.{key}", default)
        if value is None:
            raise BadWeights(f"the GGUF file has no {family.name}.{key}")
        return value

    heads, hidden = int(number("attention.head_count")), int(number("embedding_length"))
    eos = (fields.get("tokenizer.ggml.eos_token_id"), fields.get("tokenizer.ggml.eot_token_id"))
    common = {
        "layers": int(number("block_count")),
        "hidden": hidden,
        "heads": heads,
        "kv_heads": int(number("attention.head_count_kv", heads)),
        "head_dim": int(number("attention.key_length", hidden // heads)),
        "intermediate": int(number("feed_forward_length")),
        "vocab": vocab,
        "norm_eps": _shortest_float32(number("attention.layer_norm_rms_epsilon", 1e-5)),
        "rope": rope_from_gguf(fields, family.name, rope_factors),
        "tied": tied,
        "max_context": int(number("context_length")),
        "eos_ids": tuple(dict.fromkeys(int(i) for i in eos if i is not None)),
        "bos_id": next(iter(_ids(fields.get("tokenizer.ggml.bos_token_id"))), None),
    }
    return ModelConfig(**{"architecture": family.name, **common, **family.gguf_extras(fields)})


def _refuse_options(raw: Mapping[str, Any], family: Family) -> None:
    """Options that would change the output and have no code here."""
    asked = str(raw.get("hidden_activation") or raw.get("hidden_act") or family.hf_activation)
    if {"swish": "silu"}.get(asked, asked) != family.hf_activation:
        raise UnsupportedModel(
            f"activation {asked} is not supported for {family.name} models; "
            f"only {family.hf_activation} is"
        )
    for name in (*family.refused, "quantization_config"):
        if raw.get(name):
            raise UnsupportedModel(f"{name} is not supported for {family.name} models")


def _check_gguf_options(fields: Mapping[str, Any], architecture: str) -> None:
    if int(fields.get("split.count", 1)) > 1:
        raise UnsupportedModel("a split GGUF file is not supported; join it with gguf-split first")
    if int(fields.get(f"{architecture}.expert_count", 0)) > 0:
        raise UnsupportedModel(f"a mixture of experts is not supported for {architecture} models")


def _shortest_float32(value: float) -> float:
    """Undo the widening of a stored float32: 9.999999747378752e-06 is 1e-05."""
    return float(f"{value:.7g}")


def _ids(value: Any) -> tuple[int, ...]:
    if value is None:
        return ()
    values = value if isinstance(value, (list, tuple)) else [value]
    return tuple(int(v) for v in values)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise BadWeights(f"{path} cannot be read as JSON: {error}") from error
    if not isinstance(value, dict):
        raise BadWeights(f"{path} is not a JSON object")
    return value
