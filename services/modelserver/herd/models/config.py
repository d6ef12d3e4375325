"""ModelConfig: the numbers of a model, whichever file format they came from."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from services.modelserver.herd.kernels.rope import RopeConfig as RopeConfig
from services.modelserver.herd.models.errors import BadWeights, ModelNotFound, UnsupportedModel

LLAMA = "llama"
# Hugging Face class name -> our family name; GGUF files already use the family name.
HF_ARCHITECTURES = {"LlamaForCausalLM": LLAMA}


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Shapes and constants. Sizes are counts of elements; ids are token ids of the vocabulary."""

    architecture: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    norm_eps: float
    rope: RopeConfig
    tied: bool
    max_context: int
    eos_ids: tuple[int, ...]
    bos_id: int | None

    def __post_init__(self) -> None:
        for name in ("layers", "hidden", "heads", "kv_heads", "head_dim", "intermediate", "vocab"):
            if getattr(self, name) < 1:
                raise BadWeights(f"the model's config gives {name}={getattr(self, name)}")
        if self.heads % self.kv_heads:
            raise BadWeights(
                f"{self.heads} attention heads do not divide among {self.kv_heads} KV heads"
            )
        if self.head_dim % 2:
            raise BadWeights(f"rotary embedding needs an even head_dim, not {self.head_dim}")

    @property
    def q_size(self) -> int:
        """Width of the concatenated query heads."""
        return self.heads * self.head_dim

    @property
    def kv_size(self) -> int:
        """Width of the concatenated key (or value) heads."""
        return self.kv_heads * self.head_dim

    def canonical_json(self) -> bytes:
        """The same bytes for the same config, for digests."""
        return json.dumps(asdict(self), sort_keys=True, separators=(",", ":")).encode()


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
    architecture = _hf_architecture(raw)
    _refuse_options(raw)
    try:
        heads, hidden = int(raw["num_attention_heads"]), int(raw["hidden_size"])
        return ModelConfig(
            architecture=architecture,
            layers=int(raw["num_hidden_layers"]),
            hidden=hidden,
            heads=heads,
            kv_heads=int(raw.get("num_key_value_heads") or heads),
            head_dim=int(raw.get("head_dim") or hidden // heads),
            intermediate=int(raw["intermediate_size"]),
            vocab=int(raw["vocab_size"]),
            norm_eps=float(raw.get("rms_norm_eps", 1e-6)),
            rope=_rope_from_hf(raw),
            tied=bool(raw.get("tie_word_embeddings", False)),
            max_context=int(raw.get("max_position_embeddings", 2048)),
            eos_ids=_ids(generation.get("eos_token_id", raw.get("eos_token_id"))),
            bos_id=next(iter(_ids(raw.get("bos_token_id"))), None),
        )
    except KeyError as missing:
        raise BadWeights(f"config.json has no {missing.args[0]}") from None


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
    architecture = str(fields.get("general.architecture", "none given"))
    _check_supported(architecture)
    _check_gguf_options(fields, architecture)

    def number(key: str, default: Any = None) -> Any:
        value = fields.get(f"{architecture}.{key}", default)
        if value is None:
            raise BadWeights(f"the GGUF file has no {architecture}.{key}")
        return value

    heads, hidden = int(number("attention.head_count")), int(number("embedding_length"))
    eos = (fields.get("tokenizer.ggml.eos_token_id"), fields.get("tokenizer.ggml.eot_token_id"))
    return ModelConfig(
        architecture=architecture,
        layers=int(number("block_count")),
        hidden=hidden,
        heads=heads,
        kv_heads=int(number("attention.head_count_kv", heads)),
        head_dim=int(number("attention.key_length", hidden // heads)),
        intermediate=int(number("feed_forward_length")),
        vocab=vocab,
        norm_eps=_shortest_float32(number("attention.layer_norm_rms_epsilon", 1e-5)),
        rope=_rope_from_gguf(fields, architecture, rope_factors),
        tied=tied,
        max_context=int(number("context_length")),
        eos_ids=tuple(dict.fromkeys(int(i) for i in eos if i is not None)),
        bos_id=next(iter(_ids(fields.get("tokenizer.ggml.bos_token_id"))), None),
    )


def _hf_architecture(raw: Mapping[str, Any]) -> str:
    named = raw.get("architectures") or []
    if named:
        name = str(named[0])
        if name not in HF_ARCHITECTURES:
            raise _unsupported(name)
        return HF_ARCHITECTURES[name]
    family = str(raw.get("model_type", "none given"))
    _check_supported(family)
    return family


def _check_supported(family: str) -> None:
    if family not in HF_ARCHITECTURES.values():
        raise _unsupported(family)


def _unsupported(name: str) -> UnsupportedModel:
    known = ", ".join(sorted(HF_ARCHITECTURES))
    return UnsupportedModel(f"architecture {name} is not supported; supported: {known}")


def _refuse_options(raw: Mapping[str, Any]) -> None:
    """Options that would change the output and have no code here."""
    if raw.get("hidden_act", "silu") not in ("silu", "swish"):
        raise UnsupportedModel(f"hidden_act {raw['hidden_act']} is not supported; only silu is")
    for name in ("attention_bias", "mlp_bias", "quantization_config"):
        if raw.get(name):
            raise UnsupportedModel(f"{name} is not supported for {LLAMA} models")


def _rope_from_hf(raw: Mapping[str, Any]) -> RopeConfig:
    # transformers 5 writes rope_parameters; before that rope_theta and rope_scaling.
    scaling = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    theta = float(scaling.get("rope_theta", raw.get("rope_theta", 10_000.0)))
    kind = str(scaling.get("rope_type", scaling.get("type", "default")))
    if kind == "default":
        return RopeConfig(theta)
    if kind == "linear":
        return RopeConfig(theta, kind, factor=float(scaling["factor"]))
    if kind == "llama3":
        return RopeConfig(
            theta,
            kind,
            factor=float(scaling["factor"]),
            low_freq_factor=float(scaling["low_freq_factor"]),
            high_freq_factor=float(scaling["high_freq_factor"]),
            original_context=int(scaling["original_max_position_embeddings"]),
        )
    raise UnsupportedModel(
        f"rope scaling {kind} is not supported; supported: default, linear, llama3"
    )


def _rope_from_gguf(
    fields: Mapping[str, Any], architecture: str, factors: Sequence[float]
) -> RopeConfig:
    theta = float(fields.get(f"{architecture}.rope.freq_base", 10_000.0))
    kind = str(fields.get(f"{architecture}.rope.scaling.type", "none"))
    if factors:
        return RopeConfig(theta, "factors", factors=tuple(float(f) for f in factors))
    if kind == "none":
        return RopeConfig(theta)
    if kind == "linear":
        factor = float(fields[f"{architecture}.rope.scaling.factor"])
        return RopeConfig(theta, "linear", factor=factor)
    raise UnsupportedModel(f"rope scaling {kind} in a GGUF file is not supported")


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
