"""Where weights come from: a safetensors folder or a GGUF file, read tensor by tensor.

Both give the same thing: a config, and tensors under Hugging Face's names for the model's family,
lazily (one tensor in memory at a time) as float32. ``check_complete`` proves before loading that
the tensors are exactly those that the config promises.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import gguf
import numpy as np
import torch
from safetensors import SafetensorError, safe_open

from services.modelserver.herd.models.config import ModelConfig
from services.modelserver.herd.models.digest import FLOAT_DTYPES
from services.modelserver.herd.models.errors import BadWeights, ModelNotFound
from services.modelserver.herd.models.families import family_named
from services.modelserver.herd.models.family import Family
from services.modelserver.herd.models.read_config import config_from_folder, config_from_gguf


@dataclass(frozen=True, slots=True)
class SourceTensor:
    """One stored tensor.

    ``dtype`` names the stored encoding (``bfloat16``, ``Q4_1``...), ``shape`` is the logical one,
    rows first. ``stored`` gives the bytes as they lie in the file, for digests; ``load`` gives a
    float32 tensor of ``shape`` that the caller owns.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    stored: Callable[[], memoryview]
    load: Callable[[], torch.Tensor]


class WeightSource(Protocol):
    """A config and the tensors that go with it, by canonical name."""

    @property
    def config(self) -> ModelConfig: ...
    @property
    def tensors(self) -> Mapping[str, SourceTensor]: ...


def open_source(path: Path) -> WeightSource:
    """The source at ``path``: a folder is safetensors, a ``.gguf`` file is GGUF."""
    if path.is_dir():
        return SafetensorsFolder(path)
    if path.is_file() and path.suffix == ".gguf":
        return GgufFile(path)
    raise ModelNotFound(f"{path} is neither a model folder nor a .gguf file")


def iter_float32(source: WeightSource) -> Iterator[tuple[str, torch.Tensor]]:
    """Every (name, float32 tensor), sorted by name, one at a time."""
    for name in sorted(source.tensors):
        yield name, source.tensors[name].load()


def check_complete(source: WeightSource) -> None:
    """Raise BadWeights, naming the tensor, unless the source holds exactly what its config says."""
    expected = family_named(source.config.architecture).shapes(source.config)
    for name, shape in expected.items():
        tensor = source.tensors.get(name)
        if tensor is None:
            raise BadWeights(f"tensor {name} is missing")
        if tensor.shape != shape:
            raise BadWeights(f"tensor {name} has shape {tensor.shape}, the config says {shape}")
    for name in source.tensors:
        if name not in expected:
            raise BadWeights(f"tensor {name} has no place in a {source.config.architecture} model")


class SafetensorsFolder:
    """``config.json`` beside ``model.safetensors`` or the shards that an index lists."""

    def __init__(self, folder: Path) -> None:
        self.config = config_from_folder(folder)
        self.tensors: dict[str, SourceTensor] = {}
        index = folder / "model.safetensors.index.json"
        if index.is_file():
            self._add_shards(folder, index)
        elif (folder / "model.safetensors").is_file():
            self._add_file(folder / "model.safetensors")
        else:
            raise ModelNotFound(f"{folder} has neither model.safetensors nor an index of shards")
        if self.config.tied:  # some exporters store the tied head a second time
            self.tensors.pop("lm_head.weight", None)

    def _add_shards(self, folder: Path, index: Path) -> None:
        try:
            weight_map: dict[str, str] = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise BadWeights(f"{index} is not an index of shards: {error!r}") from error
        for shard in sorted(set(weight_map.values())):
            if "/" in shard or not (folder / shard).is_file():
                raise BadWeights(f"{index.name} names the shard {shard}, which is not in {folder}")
            self._add_file(folder / shard)
        for name, shard in weight_map.items():
            if name not in self.tensors and not _is_derived(name):
                raise BadWeights(f"tensor {name} is missing from the shard {shard}")

    def _add_file(self, path: Path) -> None:
        try:
            opened: Any = safe_open(path, framework="pt")
            names = list(opened.keys())  # not a mapping: it cannot be iterated itself
        except (SafetensorError, OSError) as error:
            raise BadWeights(f"{path} is not a readable safetensors file: {error}") from error
        for name in names:
            if _is_derived(name):
                continue
            if name in self.tensors:
                raise BadWeights(f"tensor {name} is stored twice, the second time in {path.name}")
            self.tensors[name] = _safetensor(opened, name)


def _is_derived(name: str) -> bool:
    """Old exports carry the rotary frequencies, which the config already determines."""
    return name.endswith("rotary_emb.inv_freq")


def _safetensor(opened: Any, name: str) -> SourceTensor:
    header = opened.get_slice(name)
    code = header.get_dtype()
    if code not in FLOAT_DTYPES:
        raise BadWeights(f"tensor {name} is stored as {code}; supported: {', '.join(FLOAT_DTYPES)}")

    def stored() -> memoryview:
        flat = opened.get_tensor(name).contiguous().reshape(-1)
        view: memoryview = flat.view(torch.uint8).numpy().data
        return view

    def load() -> torch.Tensor:
        tensor: torch.Tensor = opened.get_tensor(name).to(torch.float32)
        return tensor

    shape = tuple(int(n) for n in header.get_shape())
    return SourceTensor(name, FLOAT_DTYPES[code], shape, stored, load)


_GGUF_TOP = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_GGUF_ROPE_FACTORS = "rope_freqs.weight"


class GgufFile:
    """One GGUF file: metadata for the config, (quantized) tensors under llama.cpp's names."""

    def __init__(self, path: Path) -> None:
        try:
            reader = gguf.GGUFReader(path)
        except (ValueError, OSError, IndexError, KeyError) as error:
            raise BadWeights(f"{path} is not a readable GGUF file: {error}") from error
        stored = _unique_by_name(reader.tensors)
        embedding = stored.get("token_embd.weight")
        if embedding is None:
            raise BadWeights(f"tensor token_embd.weight is missing from {path.name}")
        self.config = config_from_gguf(
            _fields(reader),
            vocab=int(embedding.shape[1]),
            tied="output.weight" not in stored,
            rope_factors=_rope_factors(stored),
        )
        family = family_named(self.config.architecture)
        self.tensors: dict[str, SourceTensor] = {}
        for name, tensor in stored.items():
            if name != _GGUF_ROPE_FACTORS:
                canonical = canonical_gguf_name(name, family)
                self.tensors[canonical] = _gguf_tensor(canonical, tensor, self.config, family)


def canonical_gguf_name(name: str, family: Family) -> str:
    """llama.cpp's tensor name -> Hugging Face's; an unknown name is a BadWeights."""
    if name in _GGUF_TOP:
        return _GGUF_TOP[name]
    block, _, rest = name.partition(".")
    layer, _, part = rest.partition(".")
    if block == "blk" and layer.isdigit() and part in family.gguf_parts:
        return f"model.layers.{int(layer)}.{family.gguf_parts[part]}"
    raise BadWeights(f"tensor {name} has no place in a {family.name} model")


def undo_llama_cpp_permutation(rows: torch.Tensor, heads: int) -> torch.Tensor:
    """llama.cpp stores q and k rows with rotary pairs adjacent; Hugging Face wants halves apart.

    The inverse of ``LlamaModel.permute`` in llama.cpp's ``convert_hf_to_gguf.py``.
    ``rows`` is [heads * head_dim, in].
    """
    out_size, in_size = rows.shape
    pairs = rows.view(heads, out_size // heads // 2, 2, in_size)
    return pairs.transpose(1, 2).reshape(out_size, in_size)


def _gguf_tensor(name: str, tensor: Any, config: ModelConfig, family: Family) -> SourceTensor:
    permuted_heads = 0
    if family.gguf_adjacent_pairs and name.endswith("q_proj.weight"):
        permuted_heads = config.heads
    elif family.gguf_adjacent_pairs and name.endswith("k_proj.weight"):
        permuted_heads = config.kv_heads
    offset = family.gguf_norm_offset if "norm" in name else 0.0

    def load() -> torch.Tensor:
        rows = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        # A float32 tensor comes back as a view of the read-only file mapping: copy it.
        loaded = torch.from_numpy(np.array(rows, dtype=np.float32, copy=not rows.flags.writeable))
        if permuted_heads:
            return undo_llama_cpp_permutation(loaded, permuted_heads)
        return loaded - offset if offset else loaded

    def stored() -> memoryview:
        return np.ascontiguousarray(tensor.data).reshape(-1).view(np.uint8).data

    shape = tuple(int(n) for n in reversed(tensor.shape))  # GGUF counts the fastest axis first
    return SourceTensor(name, tensor.tensor_type.name, shape, stored, load)


def _unique_by_name(tensors: list[Any]) -> dict[str, Any]:
    by_name: dict[str, Any] = {}
    for tensor in tensors:
        if tensor.name in by_name:
            raise BadWeights(f"tensor {tensor.name} is stored twice")
        by_name[tensor.name] = tensor
    return by_name


def _fields(reader: gguf.GGUFReader) -> dict[str, Any]:
    """Scalar metadata; the vocabulary's long arrays are the tokenizer's business."""
    names = [k for k in reader.fields if not k.startswith("tokenizer.ggml.")]
    names += [k for k in reader.fields if k.endswith("_token_id")]
    return {name: reader.fields[name].contents() for name in names}


def _rope_factors(stored: Mapping[str, Any]) -> tuple[float, ...]:
    tensor = stored.get(_GGUF_ROPE_FACTORS)
    if tensor is None:
        return ()
    rows = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
    return tuple(float(x) for x in rows.reshape(-1))
