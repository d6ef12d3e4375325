"""Digests over source tensors and config: what makes two weight versions the same.

A tensor's digest covers its canonical name, stored dtype, shape and stored bytes, so reading a
GGUF file needs no dequantization. The root covers the config and every tensor, by sorted name.
The same weights in two file formats are two versions: their numbers differ by rounding.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from libs.hashing import WEIGHT_DIGEST_BYTES, weights_root

if TYPE_CHECKING:  # they import torch, and what digests are needs none
    from services.modelserver.herd.models.config import ModelConfig
    from services.modelserver.herd.models.source import SourceTensor, WeightSource

FLOAT_DTYPES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
"""Plain stored types by the names that safetensors gives them."""


@dataclass(frozen=True, slots=True)
class TensorDigest:
    """What a manifest says of one stored tensor; ``stored_bytes`` is its size in the file."""

    dtype: str
    shape: tuple[int, ...]
    stored_bytes: int
    digest: bytes


@dataclass(frozen=True, slots=True)
class ModelDigests:
    """All digests are 32 bytes. ``root`` names the weight version. ``tensors`` by sorted name."""

    root: bytes
    config: bytes
    tensors: Mapping[str, TensorDigest]

    @property
    def stored_bytes(self) -> int:
        return sum(tensor.stored_bytes for tensor in self.tensors.values())


def digest_source(source: WeightSource, threads: int = 1) -> ModelDigests:
    """Read every stored byte once. Hashing releases the interpreter lock, so threads help."""
    names = sorted(source.tensors)
    with ThreadPoolExecutor(max_workers=threads) as pool:
        parts = pool.map(lambda name: tensor_digest(source.tensors[name]), names)
        tensors = dict(zip(names, parts, strict=True))
    config = config_digest(source.config)
    root = weights_root(config, {name: each.digest for name, each in tensors.items()})
    return ModelDigests(root, config, tensors)


def tensor_digest(tensor: SourceTensor) -> TensorDigest:
    """blake2b over a one-line header (name, dtype, shape) and the stored bytes."""
    shape = ",".join(str(n) for n in tensor.shape)
    state = hashlib.blake2b(digest_size=WEIGHT_DIGEST_BYTES)
    state.update(f"{tensor.name}\0{tensor.dtype}\0{shape}\0".encode())
    stored = tensor.stored()
    state.update(stored)
    return TensorDigest(tensor.dtype, tensor.shape, stored.nbytes, state.digest())


def layout_signature(digests: ModelDigests) -> str:
    """Equal exactly when two versions have tensors of the same names, stored types and shapes, so
    that one can take the other's place without building the model anew."""
    state = hashlib.blake2b(digest_size=16)
    for name, tensor in digests.tensors.items():
        shape = ",".join(str(n) for n in tensor.shape)
        state.update(f"{name}\0{tensor.dtype}\0{shape}\0".encode())
    return f"layout1:{state.hexdigest()}"


def config_digest(config: ModelConfig) -> bytes:
    """blake2b over the config's canonical JSON."""
    return hashlib.blake2b(config.canonical_json(), digest_size=WEIGHT_DIGEST_BYTES).digest()
